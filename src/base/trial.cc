#include "src/base/trial.h"

#include <algorithm>

namespace sluice {

void Trial::begin(Phase phase, Nanoseconds now, Nanoseconds length) noexcept {
  phase_ = phase;
  begun_ = now;
  until_ = now + length;
}

void Trial::begin_trying(Nanoseconds now) noexcept {
  kinds_ = {};
  leaves_out_ = false;
  begin(Phase::kWith, now, kWindow);
}

// A kind that finds no place is not looked at.
void Trial::count(uint64_t kind, Nanoseconds took) noexcept {
  constexpr size_t kTries = 8;
  const size_t way = phase_ == Phase::kWithout ? 1 : 0;
  kind = std::max<uint64_t>(kind, 1);
  for (size_t i = 0; i < kTries; ++i) {
    Kind& entry = kinds_[(kind + i) % kinds_.size()];
    if (entry.name != 0 && entry.name != kind) continue;
    entry.name = kind;
    ++entry.loops[way];
    entry.seconds[way] += took;
    return;
  }
}

// By the loops that were there both ways, as many of each as in both; with little in common there
// is no saying.
bool Trial::is_better_without() const noexcept {
  constexpr double kInCommon = 0.5;  // of the time
  constexpr double kBetter = 0.98;
  std::array<double, 2> all{};
  std::array<double, 2> common{};
  for (const Kind& kind : kinds_) {
    const auto loops = static_cast<double>(std::min(kind.loops[0], kind.loops[1]));
    for (size_t way = 0; way < 2; ++way) {
      const auto seconds = static_cast<double>(kind.seconds[way].count());
      all[way] += seconds;
      if (loops > 0) common[way] += seconds * loops / static_cast<double>(kind.loops[way]);
    }
  }
  return common[0] > kInCommon * std::min(all[0], all[1]) && common[1] < kBetter * common[0];
}

void Trial::add(uint64_t kind, Nanoseconds took, Nanoseconds now) noexcept {
  if (phase_ == Phase::kCalm) {
    if (is_late_) begin_trying(now);
    return;
  }
  const bool is_trying = phase_ == Phase::kWith || phase_ == Phase::kWithout;
  if (is_trying && now - took >= begun_ + kSettling) count(kind, took);
  if (now < until_) return;
  switch (phase_) {
    case Phase::kWith: leaves_out_ = true; return begin(Phase::kWithout, now, kWindow);
    case Phase::kWithout:
      leaves_out_ = is_better_without();
      stay_ = leaves_out_ == stays_without_ ? std::min(2 * stay_, kLongestStay) : kShortestStay;
      stays_without_ = leaves_out_;
      is_late_ = false;
      return begin(Phase::kStay, now, stay_);
    case Phase::kStay:
      // With them and none late, all is well.
      if (!leaves_out_ && !is_late_) {
        phase_ = Phase::kCalm;
        stay_ = kShortestStay;
        return;
      }
      return begin_trying(now);
    case Phase::kCalm: break;
  }
}

}  // namespace sluice
