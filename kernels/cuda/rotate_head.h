#pragma once
// Rotary positions of one pair of a head's elements (kernels/rope.h). Only .cu files include it.
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

/// Elements `pair` and `pair + half` of `head`, rotated by position * inverse_frequency.
SLUICE_DEVICE void rotate_pair(float* head, int pair, int half, float position,
                               float inverse_frequency, float factor) {
  float sine, cosine;
  sin_cos_of(position * inverse_frequency, sine, cosine);
  sine *= factor;
  cosine *= factor;
  const float a = head[pair];
  const float b = head[half + pair];
  head[pair] = a * cosine - b * sine;
  head[half + pair] = b * cosine + a * sine;
}

}  // namespace sluice::cuda
