#pragma once
// Codes of a quantised panel in registers: a word of a row (quantised_layout.h) to pairs of 16-bit
// numbers, exact, in the order of the columns. Only .cu files include it.
#include "kernels/cuda/vocabulary.h"
#include "kernels/quantised_layout.h"
#include "src/base/weight_format.h"

namespace sluice::cuda {

/// NF4's values (QLoRA, arXiv:2305.14314, appendix E), as kernels::kNf4Values.
SLUICE_DEVICE float nf4_value(int code) {
  static constexpr float kValues[16] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
  return kValues[code];
}

/// The values of GGUF's IQ4_NL and IQ4_XS, as kernels::kIq4Values.
SLUICE_DEVICE float iq4_value(int code) {
  static constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
  return kValues[code];
}

/// Whether codes stand for values of a table, and these.
template <Encoding kEncoding>
constexpr bool kHasTable = kEncoding == Encoding::kNf4 || kEncoding == Encoding::kIq4;
template <Encoding kEncoding>
SLUICE_DEVICE float table_value(int code) {
  return kEncoding == Encoding::kNf4 ? nf4_value(code) : iq4_value(code);
}

/// Columns of a word: 8 codes of 4 bits or 4 of 8.
template <Encoding kEncoding>
constexpr int kColumnsOfWord = kernels::is_four_bit(kEncoding) ? 8 : 4;

/// Whether codes are whole numbers of four bits, less a zero.
template <Encoding kEncoding>
constexpr bool kHasInt4Codes = kernels::has_int4_codes(kEncoding);

/// Bytes of a group's scales.
template <Encoding kEncoding>
constexpr int kScaleBytesOf = static_cast<int>(WeightFormat{kEncoding}.scale_bytes());

/// An e8m0 scale's value as the bits of its f32.
SLUICE_DEVICE uint32_t e8m0_bits(uint32_t byte) {
  if (byte == 255) return 0x7fc00000u;
  return byte == 0 ? 1u << 22 : byte << 23;
}

/// The codes of one word as values.
template <Encoding kEncoding, bool kIsBF16>
class Codes {
 public:
  static constexpr int kPairs = kColumnsOfWord<kEncoding> / 2;
  /// Pairs of a table's values by two codes, [256], in shared memory; 0 bytes for the others.
  static constexpr int kTableBytes = kHasTable<kEncoding> ? 256 * 4 : 0;

  SLUICE_DEVICE static void fill_table([[maybe_unused]] uint32_t* table) {
    if constexpr (kHasTable<kEncoding>) {
      for (int i = thread_index(); i < 256; i += block_threads()) {
        const float low = table_value<kEncoding>(i % 16);
        const float high = table_value<kEncoding>(i / 16);
        table[i] = kIsBF16 ? pair_of_bf16(low, high) : pair_of_half(low, high);
      }
    }
  }

  /// Columns 2 i and 2 i + 1 of the word: the code (kInt4), less 8 (kQ4_0), or 128 (kInt8), or
  /// the value.
  SLUICE_DEVICE static uint32_t pair(uint32_t word, int i, const uint32_t* table) {
    switch (kEncoding) {
      case Encoding::kInt4: return nibbles<0>(word, i);
      case Encoding::kQ4_0: return nibbles<8>(word, i);
      case Encoding::kInt8: return bytes(word >> (8 * i));
      case Encoding::kNf4:
      case Encoding::kIq4: {
        const uint32_t codes = word >> (4 * i);
        return table[(codes & 15u) | ((codes >> 12) & 0xf0u)];
      }
      case Encoding::kFp8: return e4m3(word >> (8 * i));
      case Encoding::kMxfp4: return e2m1(word >> (4 * i));
      default: return 0;
    }
  }

 private:
  static constexpr uint32_t kMinusOne = 0xbf80bf80u;  // bf16

  // Nibble i of each half less kZero. 1024 + q in f16, 128 + q in bf16, less both. Nibbles 1 and 3
  // of f16 are taken where they lie, as 1024 + 16 q; bf16 has no bits for that.
  template <uint32_t kZero>
  SLUICE_DEVICE static uint32_t nibbles(uint32_t word, int i) {
    static_assert(kZero == 0 || kZero == 8);
    constexpr uint32_t kTwice = 0x00010001u;
    if (kIsBF16)
      return fma_bf16_pair(0x43004300u + kZero * kTwice, kMinusOne,
                           and_or(word >> (4 * i), 0x000f000fu, 0x43004300u));
    const uint32_t shifted = i < 2 ? word : word >> 8;
    if (i % 2 == 0)
      return sub_half2(and_or(shifted, 0x000f000fu, 0x64006400u), 0x64006400u + kZero * kTwice);
    constexpr uint32_t kLess = kZero == 0 ? 0xd400d400u : 0xd480d480u;  // 64, 72
    return fma_half2(and_or(shifted, 0x00f000f0u, 0x64006400u), 0x2c002c00u, kLess);
  }

  // The lowest byte of each half, less 128. bf16 has 8 bits: 16 (high - 8) + low.
  SLUICE_DEVICE static uint32_t bytes(uint32_t word) {
    if (!kIsBF16) return sub_half2(and_or(word, 0x00ff00ffu, 0x64006400u), 0x64806480u);
    const uint32_t high =
        fma_bf16_pair(0x43084308u, kMinusOne, and_or(word >> 4, 0x000f000fu, 0x43004300u));
    return fma_bf16_pair(high, 0x41804180u, nibbles<0>(word, 0));
  }

  // Sign, exponent and mantissa moved to their places, times the difference of the biases.
  SLUICE_DEVICE static uint32_t e4m3(uint32_t word) {
    const uint32_t sign = (word & 0x00800080u) << 8;
    if (kIsBF16) return fma_bf16_pair(sign | (word & 0x007f007fu) << 4, 0x7b807b80u, 0x80008000u);
    return fma_half2(sign | (word & 0x007f007fu) << 7, 0x5c005c00u, 0x80008000u);
  }

  // The same of the lowest nibble of each half.
  SLUICE_DEVICE static uint32_t e2m1(uint32_t word) {
    const uint32_t sign = (word & 0x00080008u) << 12;
    if (kIsBF16) return fma_bf16_pair(sign | (word & 0x00070007u) << 6, 0x7e807e80u, 0x80008000u);
    return fma_half2(sign | (word & 0x00070007u) << 9, 0x74007400u, 0x80008000u);
  }
};

}  // namespace sluice::cuda
