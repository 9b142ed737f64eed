#pragma once
// Maximum, exp and sums over whole rows of logits, written so that the compiler vectorises them.
// Sums are in double and in a fixed order: the same logits give the same bits on every run.
// Internal to the sampler; pure, thread-safe.
#include <span>

namespace sluice::sampling {

/// The largest value of a row, NaN and +inf seen.
struct Largest {
  float value;        // -inf for an empty row; meaningless when has_unusable
  bool has_unusable;  // some value is NaN or +inf
};
Largest largest(std::span<const float> values) noexcept;

/// values[i] = exp((values[i] - max) / temperature), in place.  max >= every value, finite;
/// temperature > 0. Relative error <= 2e-7 + |exponent| * 2^-23; exponents below -87 give 0.
/// Returns their sum.
double exponentiate(std::span<float> values, float max, float temperature) noexcept;

/// log(sum(exp(values))), max >= every value, finite. Values of -inf count nothing.
double log_sum_exp(std::span<const float> values, float max) noexcept;

}  // namespace sluice::sampling
