#pragma once
// What the cost model expects of single passes, by class and size: what the engine, which knows the
// tokens that a pass really has, chooses its class by. Plain values.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::policy {

/// Modelled seconds of a pass of one size in one class, and of its lanes.
struct PassEstimate {
  double tokens = 0;
  double seconds = 0;
  double held = 0;     ///< the device's lane, rows in place that its tasks wait for included
  double device = 0;   ///< of these, the device's own
  double inplace = 0;  ///< the host's, for rows in place
  double up = 0;       ///< the link's way up
  double others = 0;   ///< the busiest of the other lanes
};

/// What the model expects of passes of all sizes in every class of a plan.
struct PassEstimates {
  std::vector<std::vector<PassEstimate>> classes;  ///< [class], by rising tokens; may be empty
  double up_rate = 0;                              ///< bytes per second that `up` was modelled with

  /// Between the two nearest sizes, on a straight line; beyond the ends as at the end.
  PassEstimate at(size_t pass_class, int64_t tokens) const noexcept;
};

}  // namespace sluice::policy
