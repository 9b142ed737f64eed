#include "policy/pass_estimates.h"

#include <algorithm>
#include <iterator>

namespace sluice::policy {

PassEstimate PassEstimates::at(size_t pass_class, int64_t tokens) const noexcept {
  const std::vector<PassEstimate>& of = classes[pass_class];
  const auto size = static_cast<double>(tokens);
  const auto above = std::find_if(of.begin(), of.end(),
                                  [&](const PassEstimate& one) { return one.tokens >= size; });
  if (above == of.end()) return of.back();
  if (above == of.begin() || above->tokens == size) return *above;
  const PassEstimate& low = *std::prev(above);
  const double t = (size - low.tokens) / (above->tokens - low.tokens);
  const auto between = [&](double PassEstimate::*field) {
    return low.*field + t * ((*above).*field - low.*field);
  };
  return {size,
          between(&PassEstimate::seconds),
          between(&PassEstimate::held),
          between(&PassEstimate::device),
          between(&PassEstimate::inplace),
          between(&PassEstimate::up),
          between(&PassEstimate::others)};
}

}  // namespace sluice::policy
