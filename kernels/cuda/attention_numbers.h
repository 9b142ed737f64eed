#pragma once
// What both attention kernels (attention_block.h, latent_attention.cu) do in f16 or in bf16.
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

constexpr float kNoScore = -1e30f;  // of a position that is not seen
constexpr float kLog2E = 1.4426950408889634f;

/// What a row's weighted values, summed beside `maximum`, are multiplied with: one over the sum of
/// its weights, a sink's (null: it has none) too.
SLUICE_DEVICE float sum_factor(const float* sink, float maximum, float sum) {
  if (!sink) return sum > 0 ? 1.0f / sum : 0.0f;
  const float score = *sink * kLog2E;
  const float most = score > maximum ? score : maximum;
  const float fade = exp2_approx(maximum - most);
  return fade / (sum * fade + exp2_approx(score - most));
}

template <bool kIsBF16>
struct AttentionNumbers {
  SLUICE_DEVICE static uint16_t narrow(float value) {
    return kIsBF16 ? float_to_bf16(value) : float_to_half(value);
  }
  SLUICE_DEVICE static uint32_t narrow_pair(float low, float high) {
    return kIsBF16 ? pair_of_bf16(low, high) : pair_of_half(low, high);
  }
  SLUICE_DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    if (kIsBF16)
      mma_16x8x16_bf16(d, a, b);
    else
      mma_16x8x16_f16(d, a, b);
  }
};

}  // namespace sluice::cuda
