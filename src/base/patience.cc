#include "src/base/patience.h"

#include <algorithm>

namespace sluice {

namespace {
// A second thread makes a third to a whole more of memory-bound and of other loops, the last of n
// threads 1 / (n - 1) of that: what is waited for stays below what is gained.
constexpr int kPrice = 4;
}  // namespace

Patience::Patience(int threads, Nanoseconds most) noexcept
    : price_(kPrice * std::max(threads - 1, 1)), most_(most), owned_(most) {}

Patience::Nanoseconds Patience::charge(Nanoseconds waited, Nanoseconds worked) noexcept {
  const Nanoseconds since = worked - seen_;
  seen_ = worked;
  served_ += since;
  owned_ = std::min(most_, owned_ + since / price_) - waited;
  if (owned_ >= Nanoseconds{0}) return Nanoseconds{0};
  owned_ = Nanoseconds{0};
  benched_ = std::clamp(2 * benched_ - served_, kShortest, kLongest);
  served_ = Nanoseconds{0};
  return benched_;
}

}  // namespace sluice
