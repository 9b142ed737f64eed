#pragma once
// Rotary positions (arXiv:2104.09864) in both layouts (src/base/rope_layout.h).
#include <cstdint>

#include "src/base/rope_layout.h"

namespace sluice::kernels {

/// Rotates the first rotary_dim elements of each head in place. Angle of pair j: f32(position) *
/// inverse_frequencies[j].
///   x [tokens, heads, head_dim], row stride `stride` floats    positions [tokens]
///   inverse_frequencies [rotary_dim / 2]
/// cos and sin are multiplied by `factor`. rotary_dim <= 1024.
void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout = RopeLayout::kHalves) noexcept;

namespace reference {
void rope_inplace(float* x, int64_t tokens, int64_t stride, int heads, int head_dim, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout = RopeLayout::kHalves);
}  // namespace reference

}  // namespace sluice::kernels
