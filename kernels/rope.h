#pragma once
// Rotary positions (arXiv:2104.09864), half-split as Hugging Face's rotate_half: element j pairs
// with j + rotary_dim / 2.
#include <cstdint>

namespace sluice::kernels {

/// Rotates the first rotary_dim elements of each head in place. Angle of pair j: f32(position) *
/// inverse_frequencies[j].
///   x [tokens, heads, head_dim], row stride `stride` floats    positions [tokens]
///   inverse_frequencies [rotary_dim / 2]
/// cos and sin are multiplied by `factor`. rotary_dim <= 1024.
void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies,
                  float factor) noexcept;

namespace reference {
void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor);
}  // namespace reference

}  // namespace sluice::kernels
