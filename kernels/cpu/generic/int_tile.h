#pragma once
// Numbers of attention on integers (generic/int_attention.h): queries and weights as whole numbers,
// and what they are worth.
#include "kernels/cpu/generic/attention_tile.h"

namespace sluice::kernels {
namespace {

constexpr int kDigits = 2;  // bytes of a number of 15 bits
constexpr int kIntRows = static_cast<int>(kCodeRows);
constexpr int kChunkVectors = static_cast<int>(kAttentionChunk / kLanes);

struct IntTile {
  alignas(64) int8_t q[kIntRows][kDigits][KvFormat::kMostHeadDim];
  float q_steps[kIntRows][kMostKvGroups];
  alignas(64) float added[kIntRows * kMostKvGroups * kLanes] = {};
};

// A row's weights of a chunk times a group's scales.
struct IntWeights {
  alignas(64) int8_t digits[kDigits][kAttentionChunk];
  float step;
};

// Of numbers beside codes of 4 or 8 bits.
template <bool kFourBit>
constexpr int kDigitsBeside = kFourBit ? 1 : kDigits;

constexpr float kMostOfDigits = 127.0f * 128.0f;  // a number of 15 bits

// What one of `levels` is worth, and how many a number is; 0 of zeros.
struct DigitScale {
  float step;
  float inverse;
};
inline DigitScale digit_scale(float largest, float levels) {
  if (!(largest > 1e-30f)) return {0, 0};
  return {largest * (1 / levels), levels / largest};
}

// Of the largest lanes of R vectors.
template <int R>
inline void digit_scales(const VecF (&largest)[R], float levels, DigitScale (&out)[R]) {
  for (int r = 0; r < R; ++r) out[r] = digit_scale(max_lane(largest[r]), levels);
}

}  // namespace
}  // namespace sluice::kernels
