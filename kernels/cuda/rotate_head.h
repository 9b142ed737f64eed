#pragma once
// Rotary positions of one pair of a head's elements (kernels/rope.h). Only .cu files include it.
#include "kernels/cuda/vocabulary.h"
#include "src/base/rope_layout.h"

namespace sluice::cuda {

/// Pair `pair` of `half` of `head`, rotated by position * inverse_frequency.
SLUICE_DEVICE void rotate_pair(float* head, int pair, int half, RopeLayout layout, float position,
                               float inverse_frequency, float factor) {
  float sine, cosine;
  sin_cos_of(position * inverse_frequency, sine, cosine);
  sine *= factor;
  cosine *= factor;
  const bool is_paired = layout == RopeLayout::kPairs;
  float* const low = head + (is_paired ? 2 * pair : pair);
  float* const high = low + (is_paired ? 1 : half);
  const float a = *low;
  const float b = *high;
  *low = a * cosine - b * sine;
  *high = b * cosine + a * sine;
}

}  // namespace sluice::cuda
