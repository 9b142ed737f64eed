#pragma once
// Products of codes of K and V with whole numbers by the multiplications of pairs that AVX2 has: a
// vector holds four elements of eight positions (K) or four positions of eight elements (V). 4-bit
// codes are multiplied as bytes, sums of few of them fit 16 bits; 8-bit ones as 16 bits, by whole
// numbers of 16 bits, those of a word in the order of its even and then its odd bytes.
#include "kernels/cpu/isa/avx2.h"
#include "kernels/cpu/generic/int_tile.h"
#include "kernels/cpu/generic/quantised_attention.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kCodeVector = 32;  // bytes of codes that a vector holds

// Whole numbers nearest to 16 floats, in their order; `turned`: of every four the middle two change
// places.
inline __m256i whole16(VecF low, VecF high, bool turned) {
  const __m256i a = _mm256_cvtps_epi32((__m256)low), b = _mm256_cvtps_epi32((__m256)high);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  return turned ? _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xd8), 0xd8) : packed;
}

inline __m256i word_at(const int8_t* numbers) { return _mm256_set1_epi32(load_word(numbers)); }
// The low and the high four bits of bytes, or even and odd bytes as 16 bits.
template <bool kFourBit>
inline void split_codes(const char* from, __m256i (&codes)[2]) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i mask = kFourBit ? _mm256_set1_epi8(15) : _mm256_set1_epi16(255);
  codes[0] = _mm256_and_si256(bytes, mask);
  codes[1] =
      kFourBit ? _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask) : _mm256_srli_epi16(bytes, 8);
}

struct PairProducts {
  template <bool kFourBit, int R>
  static constexpr int kScoreBlocks = R == 4 ? 2 : 4;
  template <bool kFourBit, int R>
  static constexpr int kWeighLines = kFourBit ? 4 / R
                                     : R == 1 ? 4
                                              : 2;

  template <int R>
  static void digit_scales(const VecF (&largest)[R], float levels, DigitScale (&out)[R]) {
    kernels::digit_scales(largest, levels, out);
  }

  template <bool kFourBit>
  static void put_queries(const float* q, float inverse, IntTile& ints, int row, int begin) {
    int8_t* const to = ints.q[row][0];
    for (int d = 0; d < KvFormat::kGroup; d += 2 * kLanes) {
      const __m256i whole =
          whole16(load(q + d) * splat(inverse), load(q + d + kLanes) * splat(inverse), !kFourBit);
      if constexpr (kFourBit) {
        const __m128i bytes =
            _mm_packs_epi16(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + begin + d), bytes);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * (begin + d)), whole);
      }
    }
  }

  // A chunk's weights: bytes, whose sums it returns, or 16 bits each.
  template <bool kFourBit>
  static VecI put_weights(const VecF (&scaled)[kChunkVectors], IntWeights& out) {
    VecI sum = {};
    int8_t* const to = out.digits[0];
    for (int i = 0; i < kChunkVectors; i += 4) {
      const __m256i first = whole16(scaled[i], scaled[i + 1], !kFourBit);
      const __m256i second = whole16(scaled[i + 2], scaled[i + 3], !kFourBit);
      if constexpr (kFourBit) {
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * kLanes), bytes);
        sum += whole_of((VecS)_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)));
      } else {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 2 * i * kLanes), first);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 2 * (i + 2) * kLanes), second);
      }
    }
    return sum;
  }

  // Scores of R rows x B blocks of eight positions. Eight vectors' pairs of 4-bit codes and queries
  // of 7 bits fit 16 bits (8 x 2 x 15 x 127): those of four words.
  template <bool kFourBit, int R, int B>
  static void score_ints(const AttentionTile& tile, const IntTile& ints, int first, int block) {
    constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
    constexpr int kWords = static_cast<int>(KvFormat::kGroup) / (kFourBit ? 8 : 4);
    constexpr int kTogether = 4;  // words
    constexpr int64_t kRowBytes = kDigits * KvFormat::kMostHeadDim;
    const char* keys[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const int at = (block + b) * kLanes;
      keys[b] = tile.now.keys[at / kBlock] + at % kBlock * 4;
    }
    VecF totals[R][B] = {};
    for (int g = 0; g < tile.groups; ++g) {
      VecI sums[R][B] = {};
      const int8_t* q = ints.q[first][0] + g * KvFormat::kGroup * (kFourBit ? 1 : 2);
      for (int begin = 0; begin < kWords; begin += kTogether) {
        [[maybe_unused]] VecS parts[R][B] = {};
        const int8_t* const words = q + begin * 8;
        const int64_t at = (g * kWords + begin) * kBlock * 4;
        tile.fetch->after(R * B * 2 * kTogether);
#pragma GCC unroll 4
        for (int w = 0; w < kTogether; ++w) {
          __m256i codes[B][2];
#pragma GCC unroll 8
          for (int b = 0; b < B; ++b)
            split_codes<kFourBit>(keys[b] + at + w * kBlock * 4, codes[b]);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
              // 16 bytes are 32 elements of four bits: the first 16 in the low bits.
              const __m256i word = word_at(words + r * kRowBytes +
                                           (kFourBit ? w * 4 + half * 16 : w * 8 + half * 4));
#pragma GCC unroll 8
              for (int b = 0; b < B; ++b) {
                if constexpr (kFourBit)
                  add_pairs(parts[r][b], codes[b][half], word);
                else
                  add_pairs(sums[r][b], codes[b][half], word);
              }
            }
        }
        if constexpr (kFourBit)
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) sums[r][b] += whole_of(parts[r][b]);
      }
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) {
        const GroupScales scales = group_scales(tile, tile.now.key_scales, g, (block + b) * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const VecF value = __builtin_convertvector(sums[r][b], VecF);
          const VecF q_sum = splat(tile.q_sums[(first + r) * kMostKvGroups + g]);
          totals[r][b] +=
              scales.minimum * q_sum + value * splat(ints.q_steps[first + r][g]) * scales.scale;
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b)
        store(tile.scores + (first + r) * kAttentionChunk + (block + b) * kLanes, totals[r][b]);
    tile.fetch->catch_up();
  }

  // R rows' weighted values, kLines vectors of a group at a time. Four vectors' pairs of weights
  // and 4-bit codes fit 16 bits (4 x 2 x 255 x 15).
  template <bool kFourBit, int R, int kLines>
  static void weigh_lines(const AttentionTile& tile, const IntWeights (&weights)[R], int first,
                          int group, int line, int count) {
    constexpr int kHalves = kFourBit ? 2 : 1;
    constexpr int kTogether = 4;  // quads
    constexpr int64_t kGroupLines = KvFormat::kGroup / kLanes / kHalves;
    const int64_t begin = (group * kGroupLines + line) * kCodeVector;
    VecI sums[R][kLines][kHalves] = {};
    for (int first_quad = 0; first_quad * 4 < count;
         first_quad += kTogether) {  // past the end weights are zero
      [[maybe_unused]] VecS parts[R][kLines][2] = {};
      tile.fetch->after(R * kLines * 2 * kTogether);
#pragma GCC unroll 4
      for (int quad = first_quad; quad < first_quad + kTogether; ++quad) {
        const char* from = tile.now.values[quad] + begin;
#pragma GCC unroll 4
        for (int i = 0; i < kLines; ++i) {
          __m256i codes[2];
          split_codes<kFourBit>(from + i * kCodeVector, codes);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            const int8_t* const numbers = weights[r].digits[0];
            if constexpr (kFourBit) {
              const __m256i word = word_at(numbers + quad * 4);
              add_pairs(parts[r][i][0], word, codes[0]);
              add_pairs(parts[r][i][1], word, codes[1]);
            } else {
              add_pairs(sums[r][i][0], codes[0], word_at(numbers + quad * 8));
              add_pairs(sums[r][i][0], codes[1], word_at(numbers + quad * 8 + 4));
            }
          }
        }
      }
      if constexpr (kFourBit)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int i = 0; i < kLines; ++i)
            for (int half = 0; half < 2; ++half) sums[r][i][half] += whole_of(parts[r][i][half]);
    }
    tile.fetch->catch_up();
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const row = tile.sums + (first + r) * tile.dim + group * KvFormat::kGroup;
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i)
        for (int half = 0; half < kHalves; ++half) {
          const int vector = line + i;
          float* const to = row + (kFourBit ? vector / 2 * 32 + half * 16 + vector % 2 * kLanes
                                            : vector * kLanes);
          store(to, load(to) +
                        __builtin_convertvector(sums[r][i][half], VecF) * splat(weights[r].step));
        }
    }
  }
};

}  // namespace
}  // namespace sluice::kernels
