#pragma once
// Whether loops are faster with helpers whose cores others want, or without: tried, because it
// can't be known. A scheduler that gives each user, session or container its share takes from the
// caller what it gives to its helpers. Arithmetic on times alone, no clock: loops with and without
// the helpers are compared by kind, each for a while, and the better way is kept for longer.
#include <array>
#include <chrono>
#include <cstdint>

namespace sluice {

class Trial {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  /// Of each way. The first part of it is not counted: schedulers take that long to see a change.
  static constexpr Nanoseconds kWindow = std::chrono::milliseconds(600);
  static constexpr Nanoseconds kSettling = std::chrono::milliseconds(150);
  /// For which the better way is kept, at first and at most.
  static constexpr Nanoseconds kShortestStay = std::chrono::milliseconds(2000);
  static constexpr Nanoseconds kLongestStay = std::chrono::milliseconds(16000);

  /// A helper was without its core too much: there is something to try.
  void note_late() noexcept { is_late_ = true; }
  /// A loop has ended at `now`. Those of one `kind` do the same work, or the same in the mean.
  void add(uint64_t kind, Nanoseconds took, Nanoseconds now) noexcept;
  /// Whether the next loop does without them.
  bool leaves_out() const noexcept { return leaves_out_; }
  /// Nobody was late for a while: nothing is tried.
  bool is_calm() const noexcept { return phase_ == Phase::kCalm; }

 private:
  enum class Phase : uint8_t { kCalm, kWith, kWithout, kStay };
  struct Kind {
    uint64_t name = 0;
    std::array<int64_t, 2> loops{};  // with, without
    std::array<Nanoseconds, 2> seconds{};
  };

  void begin(Phase phase, Nanoseconds now, Nanoseconds length) noexcept;
  void begin_trying(Nanoseconds now) noexcept;
  void count(uint64_t kind, Nanoseconds took) noexcept;
  bool is_better_without() const noexcept;

  Phase phase_ = Phase::kCalm;
  bool is_late_ = false;  // since the phase began
  bool leaves_out_ = false;
  bool stays_without_ = false;  // the last time
  Nanoseconds begun_{};
  Nanoseconds until_{};
  Nanoseconds stay_ = kShortestStay;
  std::array<Kind, 64> kinds_{};
};

}  // namespace sluice
