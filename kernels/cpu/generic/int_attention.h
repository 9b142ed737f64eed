#pragma once
// Decode attention on integers: codes of K and V are multiplied as they are, by the products of
// bytes or of 16 bits that the CPU has. Queries beside 8-bit keys, and softmax weights times a
// group's scale, become whole numbers of 15 bits of their group's largest: a fraction of what
// quantising K and V to 8 bits has cost. Those beside 4-bit keys are whole numbers of 7 bits
// already, and weights beside 4-bit values become unsigned bytes. A vector of turned codes holds
// some elements of several positions (K) or some positions of several elements (V): sums stay in
// their lanes, and a scale is applied once for 64 products. Heads of whole groups. Products: what
// an instruction set has for it, avx2/int_products.h and avx512_bf16/int_products.h.
#include "kernels/cpu/generic/int_tile.h"
#include "kernels/cpu/generic/sparse_attention.h"

namespace sluice::kernels {
namespace {

template <typename Products, bool kFourBit>
inline void take_queries(const AttentionTile& tile, IntTile& ints) {
  for (int r = 0; r < tile.rows; ++r)
    for (int g = 0; g < tile.dim / KvFormat::kGroup; ++g) {
      const float* q = tile.q + r * tile.dim + g * KvFormat::kGroup;
      VecF largest = {};
      for (int d = 0; d < KvFormat::kGroup; d += kLanes)
        largest = max_of(max_of(largest, load(q + d)), -load(q + d));
      const DigitScale scale =
          digit_scale(max_lane(largest), kFourBit ? kQueryLevels : kMostOfDigits);
      ints.q_steps[r][g] = scale.step;
      Products::template put_queries<kFourBit>(q, scale.inverse, ints, r,
                                               g * static_cast<int>(KvFormat::kGroup));
    }
}

template <typename Products, bool kFourBit, int R>
inline void score_int_rows(const AttentionTile& tile, const IntTile& ints, int first, int count) {
  constexpr int kBlocks = Products::template kScoreBlocks<kFourBit, R>;
  for (int block = 0; block * kLanes < count; block += kBlocks)
    Products::template score_ints<kFourBit, R, kBlocks>(tile, ints, first, block);
}

// Weights of R rows times a group's scales, as whole numbers; and times the minima, added to what
// was. What rounding to bytes takes from weights or gives them meets the middle of the codes: many
// small ones beside a large one then move a sum to neither side.
constexpr int64_t kDigitsWork = 16;
constexpr float kMostOfByte = 255, kMiddleOfFourBits = 7.5f;
template <typename Products, bool kFourBit, int R>
inline void take_weights(const AttentionTile& tile, int first, int group, IntWeights (&out)[R]) {
  GroupScales scales[kChunkVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kChunkVectors; ++i) {
    scales[i] = group_scales(tile, tile.now.value_scales, group, i * kLanes);
    if constexpr (kFourBit) scales[i].minimum += scales[i].scale * kMiddleOfFourBits;
  }
  const float* const p = tile.scores + first * kAttentionChunk;
  VecF scaled[R][kChunkVectors], largest[R] = {};
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < kChunkVectors; ++i) {
      scaled[r][i] = load(p + r * kAttentionChunk + i * kLanes) * scales[i].scale;
      largest[r] = max_of(largest[r], scaled[r][i]);
    }
  DigitScale levels[R];
  Products::digit_scales(largest, kFourBit ? kMostOfByte : kMostOfDigits, levels);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const VecF step = splat(levels[r].step), inverse = splat(levels[r].inverse);
    float* const added_at = tile.added + (first + r) * tile.added_stride + group * kLanes;
    VecF added = load(added_at);
#pragma GCC unroll 8
    for (int i = 0; i < kChunkVectors; ++i) {
      scaled[r][i] *= inverse;
      added += load(p + r * kAttentionChunk + i * kLanes) * scales[i].minimum;
    }
    const VecI whole = Products::template put_weights<kFourBit>(scaled[r], out[r]);
    if constexpr (kFourBit)
      added -= __builtin_convertvector(whole, VecF) * (step * splat(kMiddleOfFourBits));
    store(added_at, added);
    out[r].step = levels[r].step;
  }
}

template <typename Products, bool kFourBit, int R>
inline void weigh_ints(const AttentionTile& tile, int first, int count) {
  constexpr int kHalves = kFourBit ? 2 : 1;
  constexpr int kGroupLines = static_cast<int>(KvFormat::kGroup) / kLanes / kHalves;
  constexpr int kLines = Products::template kWeighLines<kFourBit, R>;
  IntWeights weights[kMostKvGroups][R];
  for (int g = 0; g < tile.groups; ++g) {
    tile.fetch->after(R * kDigitsWork);
    take_weights<Products, kFourBit, R>(tile, first, g, weights[g]);
  }
  for (int g = 0; g < tile.groups; ++g)
    for (int line = 0; line < kGroupLines; line += kLines)
      Products::template weigh_lines<kFourBit, R, kLines>(tile, weights[g], first, g, line, count);
}

template <typename Products, bool kFourBit>
inline void score_all_ints(const AttentionTile& tile, const IntTile& ints, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) score_int_rows<Products, kFourBit, 4>(tile, ints, r, count);
  for (; r + 2 <= tile.rows; r += 2) score_int_rows<Products, kFourBit, 2>(tile, ints, r, count);
  for (; r < tile.rows; ++r) score_int_rows<Products, kFourBit, 1>(tile, ints, r, count);
}

template <typename Products, bool kFourBit>
inline void weigh_all_ints(const AttentionTile& tile, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) weigh_ints<Products, kFourBit, 4>(tile, r, count);
  for (; r + 2 <= tile.rows; r += 2) weigh_ints<Products, kFourBit, 2>(tile, r, count);
  for (; r < tile.rows; ++r) weigh_ints<Products, kFourBit, 1>(tile, r, count);
}

template <typename Products, bool kFourBitKeys, bool kFourBitValues>
void attend_ints_of(const AttentionShape& shape, const AttentionSequence& sequence,
                    const AttentionItem& item, AttentionTile& tile) {
  IntTile ints;
  take_queries<Products, kFourBitKeys>(tile, ints);
  tile.added = ints.added;
  tile.added_stride = kMostKvGroups * kLanes;
  const int64_t products = int64_t{tile.rows} * kAttentionChunk * tile.dim / (4 * kLanes);
  const auto find = [&](int32_t begin, int count) {
    find_codes(shape, sequence, item.kv_head, begin, count, tile);
  };
  const auto score = [&](int count) { score_all_ints<Products, kFourBitKeys>(tile, ints, count); };
  if (shape.sparsity < 1) {
    tile.chunk_work = products * kDigitsBeside<kFourBitKeys>;
    attend_highest(shape, sequence, item, tile, find, score,
                   [&](int count) { weigh_all_ints<Products, kFourBitValues>(tile, count); });
  } else {
    tile.chunk_work = products *
                      (kDigitsBeside<kFourBitKeys> + kDigitsBeside<kFourBitValues>)+tile.rows *
                      (kSoftenWork + tile.dim / KvFormat::kGroup * kDigitsWork);
    for (int32_t begin = item.position_begin; begin < item.position_end; begin += kAttentionChunk) {
      const int32_t left = item.position_end - begin;
      const int count = left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
      find(begin, count);
      score(count);
      soften(shape, sequence, item, tile, begin, count);
      weigh_all_ints<Products, kFourBitValues>(tile, count);
    }
  }
  for (int r = 0; r < tile.rows; ++r)
    for (int g = 0; g < tile.dim / KvFormat::kGroup; ++g) {
      const VecF added = splat(sum_lanes(load(tile.added + r * tile.added_stride + g * kLanes)));
      float* to = tile.sums + r * tile.dim + g * KvFormat::kGroup;
      for (int d = 0; d < KvFormat::kGroup; d += kLanes) store(to + d, load(to + d) + added);
    }
}

// Whether it is for these heads and rows, and done.
template <typename Products>
inline bool attend_ints(const AttentionShape& shape, const AttentionSequence& sequence,
                        const AttentionItem& item, AttentionTile& tile) {
  if (tile.rows > kIntRows || shape.head_dim % KvFormat::kGroup != 0) return false;
  if (shape.kv_dtype == kInt8KeysInt4Values)
    attend_ints_of<Products, false, true>(shape, sequence, item, tile);
  else if (shape.kv_dtype.key_encoding == KvEncoding::kInt4)
    attend_ints_of<Products, true, true>(shape, sequence, item, tile);
  else
    attend_ints_of<Products, false, false>(shape, sequence, item, tile);
  return true;
}

}  // namespace
}  // namespace sluice::kernels
