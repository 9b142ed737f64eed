#pragma once
// Panels of GGUF's K types and their like (kernels/k_layout.h) in registers: quads of codes as
// bytes, pairs of them as 16-bit numbers, exact, and the scales and minima of parts. Only .cu files
// include it.
#include "kernels/cuda/vocabulary.h"
#include "kernels/k_layout.h"

namespace sluice::cuda {

/// kernels::KLayout as constants.
template <Encoding kEncoding>
struct KPlaces {
  static constexpr kernels::KLayout kLayout = kernels::k_layout(kEncoding);
  static constexpr int kColumns = kLayout.columns;  // of a group
  static constexpr int kPartColumns = kLayout.part_columns;
  static constexpr int kBlocks = kLayout.blocks();
  static constexpr int kScaleWords = kLayout.scale_words;
  static constexpr int kZero = kLayout.zero;
  static constexpr bool kHasMinima = kLayout.has_minima;
  static constexpr bool kHasNibbles = kLayout.has_nibbles;
  static constexpr bool kHasPairs = kLayout.has_pairs;
  static constexpr bool kHasBits = kLayout.has_bits;
  static constexpr int kPairBit = kHasNibbles ? 4 : 0;  // lowest bit of a code that is of a pair
  static constexpr int kOneBit = kPairBit + (kHasPairs ? 2 : 0);
  // Lines of a block where these begin, and bytes of a group: of its scales, of a block, of all.
  static constexpr int kPairLine = kHasNibbles ? 4 : 0;
  static constexpr int kBitLine = kPairLine + (kHasPairs ? 2 : 0);
  static constexpr int kScaleBytes = static_cast<int>(kLayout.scale_bytes());
  static constexpr int kBlockBytes = kLayout.block_lines() * 64;
  static constexpr int kBytes = static_cast<int>(kLayout.bytes());
};

/// What codes mean, a byte each, before the zero comes off (kernels::k_code_value).
template <Encoding kEncoding>
SLUICE_DEVICE uint32_t k_values(uint32_t codes) {
  if (kEncoding == Encoding::kIq1)
    return (((codes & 0x01010101u) + (codes >> 1 & 0x01010101u)) << 3) + (codes >> 1 & 0x02020202u);
  if (kEncoding == Encoding::kIq2) {
    const uint32_t second = codes >> 1 & 0x01010101u;
    const uint32_t third = codes >> 2 & 0x01010101u;
    const uint32_t ones = (codes & 0x01010101u) + second + third + (third << 1);
    return (ones << 4) + ones + second;
  }
  return codes;
}

/// The words of a row and block that hold quad v of its columns, 0 to 7.
struct KWords {
  uint32_t nibbles = 0;
  uint32_t pairs = 0;
  uint32_t bits = 0;
};
template <Encoding kEncoding>
SLUICE_DEVICE uint32_t k_quad(const KWords& words, int v) {
  using Places = KPlaces<kEncoding>;
  uint32_t codes = 0;
  if (Places::kHasNibbles) codes = words.nibbles >> (4 * (v % 2)) & 0x0f0f0f0fu;
  if (Places::kHasPairs) codes |= (words.pairs >> (2 * (v % 4)) & 0x03030303u) << Places::kPairBit;
  if (Places::kHasBits) codes |= (words.bits >> v & 0x01010101u) << Places::kOneBit;
  return k_values<kEncoding>(codes);
}

/// The lowest byte of each half less the zero, as 16-bit numbers: columns 0 and 1 of a quad, of the
/// quad eight bits further columns 2 and 3.
template <Encoding kEncoding, bool kIsBF16>
SLUICE_DEVICE uint32_t k_pair(uint32_t word) {
  constexpr uint32_t kZeros = KPlaces<kEncoding>::kZero * 0x00010001u;
  // 1024 + q in f16, 128 + q in bf16: q has at most seven bits.
  if (!kIsBF16) return sub_half2(and_or(word, 0x00ff00ffu, 0x64006400u), 0x64006400u + kZeros);
  return fma_bf16_pair(0x43004300u + kZeros, 0xbf80bf80u, and_or(word, 0x007f007fu, 0x43004300u));
}

/// The scales of one row of a group, as they lie.
template <Encoding kEncoding>
struct KRowScales {
  using Places = KPlaces<kEncoding>;
  uint32_t words[Places::kScaleWords > 0 ? Places::kScaleWords : 1] = {};
  float scale = 0;    // of all parts
  float minimum = 0;  // likewise

  SLUICE_DEVICE void load_all(const std::byte* group, int row) {
    SLUICE_UNROLL
    for (int i = 0; i < Places::kScaleWords; ++i)
      words[i] = reinterpret_cast<const uint32_t*>(group + i * 64)[row];
    const std::byte* last = group + Places::kScaleWords * 64;
    if (Places::kHasMinima) {
      scale = half_to_float(reinterpret_cast<const uint16_t*>(last)[row]);
      minimum = half_to_float(reinterpret_cast<const uint16_t*>(last)[16 + row]);
    } else {
      scale = reinterpret_cast<const float*>(last)[row];
    }
  }

  SLUICE_DEVICE uint32_t byte(int i) const { return words[i / 4] >> (8 * (i % 4)) & 255u; }

  /// Of a part: what codes less the zero are multiplied with, and what is taken away then.
  SLUICE_DEVICE float scale_of(int part) const {
    switch (kEncoding) {
      case Encoding::kQ4_1:
      case Encoding::kQ5_1: return scale;
      case Encoding::kQ2K: return scale * static_cast<float>(byte(part) & 15u);
      case Encoding::kQ3K: {
        const uint32_t low = byte(part % 8) >> (part / 8 * 4) & 15u;
        const uint32_t high = byte(8 + part % 4) >> (part / 4 * 2) & 3u;
        return scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
      }
      case Encoding::kQ4K:
      case Encoding::kQ5K:
        return scale *
               static_cast<float>(part < 4 ? byte(part) & 63u
                                           : (byte(part + 4) & 15u) | (byte(part - 4) >> 6) << 4);
      default: return scale * static_cast<float>(static_cast<int8_t>(byte(part)));
    }
  }
  SLUICE_DEVICE float minimum_of(int part) const {
    switch (kEncoding) {
      case Encoding::kQ4_1:
      case Encoding::kQ5_1: return -minimum;
      case Encoding::kQ2K: return minimum * static_cast<float>(byte(part) >> 4);
      case Encoding::kQ4K:
      case Encoding::kQ5K:
        return minimum * static_cast<float>(part < 4
                                                ? byte(part + 4) & 63u
                                                : byte(part + 4) >> 4 | (byte(part) >> 6) << 4);
      default: return 0;
    }
  }
};

}  // namespace sluice::cuda
