#pragma once
// Whether a helper that comes late now and then is worth waiting for. Arithmetic on times alone, no
// clock. A helper earns a share of the time that its team works with it, and pays what it is waited
// for; one that can't pay is benched. Each time twice as long as the last, less what it served in
// between: one that is always late costs next to nothing, and one whose core is its own again is
// back before kLongest is over.
#include <chrono>

namespace sluice {

class Patience {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  static constexpr Nanoseconds kShortest = std::chrono::milliseconds(20);
  static constexpr Nanoseconds kLongest = std::chrono::milliseconds(640);
  /// Two slices of a scheduler: what happens now and then is no reason to bench anyone.
  static constexpr Nanoseconds kUsual = std::chrono::milliseconds(8);

  /// Of one of `threads` threads, who owns `most` at first and never more.
  explicit Patience(int threads, Nanoseconds most = kUsual) noexcept;

  /// It was waited for. `worked`: what its team has worked with helpers, all in all. Returns how
  /// long to do without it; 0: not at all.
  Nanoseconds charge(Nanoseconds waited, Nanoseconds worked) noexcept;
  /// It is back from the bench.
  void resume(Nanoseconds worked) noexcept { seen_ = worked; }

 private:
  int price_;  // one nanosecond is earned in so many
  Nanoseconds most_;
  Nanoseconds owned_;
  Nanoseconds seen_{};     // of what its team has worked
  Nanoseconds served_{};   // since it was benched
  Nanoseconds benched_{};  // the last time
};

}  // namespace sluice
