#pragma once
// exp over whole rows, written so that the compiler vectorises it, and sums in double in a fixed order: the same logits
// give the same bits on every run. Internal to the sampler; pure, thread-safe.
#include <span>

namespace sluice::sampling {

/// values[i] = exp((values[i] - max) / temperature), in place.  max >= every value, finite; temperature > 0.
/// Relative error <= 2e-7 + |exponent| * 2^-23; results below 1.2e-38 are 0.  Returns their sum.
double exponentiate(std::span<float> values, float max, float temperature) noexcept;

/// log(sum(exp(values))), max >= every value, finite. Values of -inf count nothing.
double log_sum_exp(std::span<const float> values, float max) noexcept;

}  // namespace sluice::sampling
