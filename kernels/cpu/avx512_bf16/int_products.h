#pragma once
// Products of codes of K and V with whole numbers by the dot product of bytes (AVX512-VNNI): a
// vector holds four elements of 16 positions (K) or four positions of 16 elements (V). Numbers of
// 15 bits are two signed bytes of digits, 2^7 digit[0] + digit[1].
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/generic/int_tile.h"
#include "kernels/cpu/generic/quantised_attention.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kCodeLine = 64;  // bytes of codes that a vector holds
static_assert(kAttentionChunk == kCodeLine);

// Packing goes by 128 bits: 64 bytes in their order again.
inline __m512i in_order(__m512i packed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

// Digits of 64 numbers, as vectors of bytes.
struct Digits64 {
  __m512i of[kDigits];
};
template <typename Number>
inline Digits64 digits_of(const Number& number) {
  __m512i whole[4];
  for (int i = 0; i < 4; ++i) whole[i] = _mm512_cvtps_epi32((__m512)number(i));
  __m512i high[2], low[2];
  for (int i = 0; i < 2; ++i) {
    const __m512i pair = _mm512_packs_epi32(whole[2 * i], whole[2 * i + 1]);
    high[i] = _mm512_srai_epi16(_mm512_add_epi16(pair, _mm512_set1_epi16(64)), 7);
    low[i] = _mm512_sub_epi16(pair, _mm512_slli_epi16(high[i], 7));
  }
  return {{in_order(_mm512_packs_epi16(high[0], high[1])),
           in_order(_mm512_packs_epi16(low[0], low[1]))}};
}

// 64 numbers from 0 on as unsigned bytes.
inline __m512i bytes_of(const VecF (&numbers)[4]) {
  __m512i pairs[2];
  for (int i = 0; i < 2; ++i)
    pairs[i] = _mm512_packs_epi32(_mm512_cvtps_epi32((__m512)numbers[2 * i]),
                                  _mm512_cvtps_epi32((__m512)numbers[2 * i + 1]));
  return in_order(_mm512_packus_epi16(pairs[0], pairs[1]));
}

inline VecI word_at(const int8_t* digits) { return (VecI)_mm512_set1_epi32(load_word(digits)); }
// Bytes as they are, or the low and the high four bits of each.
template <int kHalves>
inline void split_codes(const char* line, VecI (&codes)[kHalves]) {
  const VecI bytes = (VecI)_mm512_loadu_si512(line);
  if constexpr (kHalves == 1)
    codes[0] = bytes;
  else
    codes[0] = bytes & 0x0f0f0f0f, codes[1] = (bytes >> 4) & 0x0f0f0f0f;
}
// Sums of 64 products of a code and a digit are below 2^21.
inline VecF value_of(const VecI (&digits)[1]) { return __builtin_convertvector(digits[0], VecF); }
inline VecF value_of(const VecI (&digits)[2]) {
  return __builtin_convertvector((digits[0] << 7) + digits[1], VecF);
}

struct ByteProducts {
  template <bool kFourBit, int R>
  static constexpr int kScoreBlocks = R == 4 && !kFourBit ? 2 : 4;
  template <bool kFourBit, int R>
  static constexpr int kWeighLines = (R == 4 && !kFourBit ? 2 : 4) / (kFourBit ? 2 : 1);

  // Of the largest lanes of R vectors.
  template <int R>
  static void digit_scales(const VecF (&largest)[R], float levels, DigitScale (&out)[R]) {
    if constexpr (R == 4) {
      const __m128 most = max_each(largest);
      const __mmask8 counts = _mm_cmp_ps_mask(most, _mm_set1_ps(1e-30f), _CMP_GT_OQ);
      alignas(16) float steps[4], inverses[4];
      _mm_store_ps(steps, _mm_maskz_mul_ps(counts, most, _mm_set1_ps(1 / levels)));
      _mm_store_ps(inverses, _mm_maskz_div_ps(counts, _mm_set1_ps(levels), most));
      for (int r = 0; r < 4; ++r) out[r] = {steps[r], inverses[r]};
    } else {
      kernels::digit_scales(largest, levels, out);
    }
  }

  // A group's whole numbers of a query's row: 7 bits, or digits.
  template <bool kFourBit>
  static void put_queries(const float* q, float inverse, IntTile& ints, int row, int begin) {
    if constexpr (kFourBit) {
      for (int d = 0; d < KvFormat::kGroup; d += kLanes)
        store_bytes(ints.q[row][0] + begin + d,
                    (VecI)_mm512_cvtps_epi32((__m512)(load(q + d) * splat(inverse))));
    } else {
      const Digits64 digits =
          digits_of([&](int i) { return load(q + i * kLanes) * splat(inverse); });
      for (int k = 0; k < kDigits; ++k) _mm512_store_si512(ints.q[row][k] + begin, digits.of[k]);
    }
  }

  // A chunk's weights: bytes, whose sums it returns, or digits.
  template <bool kFourBit>
  static VecI put_weights(const VecF (&scaled)[kChunkVectors], IntWeights& out) {
    if constexpr (kFourBit) {
      const __m512i bytes = bytes_of(scaled);
      _mm512_store_si512(out.digits[0], bytes);
      return add_byte_products(VecI{}, (VecI)bytes, (VecI)_mm512_set1_epi8(1));
    } else {
      const Digits64 digits = digits_of([&](int i) { return scaled[i]; });
      for (int k = 0; k < kDigits; ++k) _mm512_store_si512(out.digits[k], digits.of[k]);
      return VecI{};
    }
  }

  // Scores of R rows x B blocks of 16 positions.
  template <bool kFourBit, int R, int B>
  static void score_ints(const AttentionTile& tile, const IntTile& ints, int first, int block) {
    constexpr int kHalves = kFourBit ? 2 : 1, kOfDigits = kDigitsBeside<kFourBit>;
    constexpr int kChains =
        R * B * kOfDigits < 8 ? kHalves : 1;  // sums that wait for each other less
    constexpr int kWords = static_cast<int>(KvFormat::kGroup) / 4 / kHalves;
    const char* keys[B];
    for (int b = 0; b < B; ++b) keys[b] = tile.now.keys[block + b];
    VecF totals[R][B] = {};
    for (int g = 0; g < tile.groups; ++g) {
      VecI sums[kChains][R][B][kOfDigits] = {};
      const int8_t* q = ints.q[first][0] + g * KvFormat::kGroup;
      const int64_t group_begin = g * kWords * kCodeLine;
#pragma GCC unroll 16
      for (int w = 0; w < kWords; ++w) {
        tile.fetch->after(R * B * kHalves * kOfDigits);
        VecI codes[B][kHalves];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b)
          split_codes<kHalves>(keys[b] + group_begin + w * kCodeLine, codes[b]);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          // 16 bytes are 32 elements of four bits: the first 16 in the low bits.
          const int element = kFourBit ? w / 4 * 32 + half * 16 + w % 4 * 4 : w * 4;
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int k = 0; k < kOfDigits; ++k) {
              const VecI word = word_at(q + (r * kDigits + k) * KvFormat::kMostHeadDim + element);
#pragma GCC unroll 4
              for (int b = 0; b < B; ++b) {
                VecI& sum = sums[half % kChains][r][b][k];
                sum = add_byte_products(sum, codes[b][half], word);
              }
            }
        }
      }
      GroupScales scales[B];
      for (int b = 0; b < B; ++b)
        scales[b] = group_scales(tile, tile.now.key_scales, g, (block + b) * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const VecF step = splat(ints.q_steps[first + r][g]),
                   q_sum = splat(tile.q_sums[(first + r) * kMostKvGroups + g]);
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) {
          if constexpr (kChains == 2)
            for (int k = 0; k < kOfDigits; ++k) sums[0][r][b][k] += sums[1][r][b][k];
          totals[r][b] += scales[b].minimum * q_sum;
          totals[r][b] += value_of(sums[0][r][b]) * step * scales[b].scale;
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b)
        store(tile.scores + (first + r) * kAttentionChunk + (block + b) * kLanes, totals[r][b]);
    tile.fetch->catch_up();
  }

  // R rows' weighted values, kLines lines of a group at a time.
  template <bool kFourBit, int R, int kLines>
  static void weigh_lines(const AttentionTile& tile, const IntWeights (&weights)[R], int first,
                          int group, int line, int count) {
    constexpr int kHalves = kFourBit ? 2 : 1, kOfDigits = kDigitsBeside<kFourBit>;
    constexpr int kGroupLines = static_cast<int>(KvFormat::kGroup) / kLanes / kHalves;
    const int64_t begin = (group * kGroupLines + line) * kCodeLine;
    constexpr int kTogether = R == 4 ? 1 : 2;  // quads
    VecI sums[R][kLines][kHalves][kOfDigits] = {};
    static_assert(kQuads % kTogether == 0);
    for (int first_quad = 0; first_quad * 4 < count;
         first_quad += kTogether) {  // past the end weights are zero
      tile.fetch->after(kTogether * R * kLines * kHalves * kOfDigits);
#pragma GCC unroll 4
      for (int quad = first_quad; quad < first_quad + kTogether; ++quad) {
        const char* from = tile.now.values[quad] + begin;
        VecI codes[kLines][kHalves];
#pragma GCC unroll 4
        for (int i = 0; i < kLines; ++i) split_codes<kHalves>(from + i * kCodeLine, codes[i]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
          for (int k = 0; k < kOfDigits; ++k) {
            const VecI word = word_at(weights[r].digits[k] + quad * 4);
#pragma GCC unroll 4
            for (int i = 0; i < kLines; ++i)
#pragma GCC unroll 2
              for (int half = 0; half < kHalves; ++half) {
                VecI& sum = sums[r][i][half][k];
                sum = kFourBit ? add_byte_products(sum, word, codes[i][half])
                               : add_byte_products(sum, codes[i][half], word);
              }
          }
      }
    }
    tile.fetch->catch_up();
    const int dim = tile.dim;
    float* to = tile.sums + first * dim + group * KvFormat::kGroup + line * kHalves * kLanes;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, to += dim)
#pragma GCC unroll 4
      for (int i = 0; i < kLines * kHalves; ++i)
        store(to + i * kLanes, load(to + i * kLanes) + value_of(sums[r][i / kHalves][i % kHalves]) *
                                                           splat(weights[r].step));
  }
};

}  // namespace
}  // namespace sluice::kernels
