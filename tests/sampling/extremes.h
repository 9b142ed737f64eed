#pragma once
// Logits that are no numbers to compute with.
#include <limits>

namespace sluice::sampling {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace sluice::sampling
