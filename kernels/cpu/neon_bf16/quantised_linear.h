#pragma once
// Products with quantised matrices on bf16 x: codes are pairs of bf16, exactly.
#include "kernels/cpu/isa/neon_bf16.h"
#include "kernels/cpu/generic/quantised_linear.h"

namespace sluice::kernels {
namespace {

// Values of codes of four bits as bf16: their low and their high bytes, looked up apart.
struct CodeTable {
  uint8x16_t low, high;

  template <typename ValueOf>
  explicit CodeTable(const ValueOf& value_of) {
    uint8_t lows[16], highs[16];
    for (int i = 0; i < 16; ++i) {
      const float value = value_of(i);
      uint32_t bits;
      __builtin_memcpy(&bits, &value, 4);
      const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
      lows[i] = static_cast<uint8_t>(rounded);
      highs[i] = static_cast<uint8_t>(rounded >> 8);
    }
    low = vld1q_u8(lows);
    high = vld1q_u8(highs);
  }
  // Of a code in each byte: those of bytes 0 and 2, or 1 and 3, of each lane.
  VecU pair(VecU codes, bool is_odd) const {
    const uint8x16_t lows = vqtbl1q_u8(low, (uint8x16_t)codes);
    const uint8x16_t highs = vqtbl1q_u8(high, (uint8x16_t)codes);
    return is_odd ? (VecU)vtrn2q_u8(lows, highs) : (VecU)vtrn1q_u8(lows, highs);
  }
};

// Two columns that are exact in bf16, which is the upper half of an f32.
inline VecU pair_of(VecF first, VecF second) {
  return (VecU)vtrn2q_u16((uint16x8_t)first, (uint16x8_t)second);
}

// bf16: pairs of columns, codes turned into bf16 exactly (the values of NF4 are rounded).
struct Bf16Step {
  static constexpr int kStep = 2;
  using Element = uint16_t;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.bf16; }
  template <bool kIsNarrow>
  static Sum step(Sum sum, VecU codes, int32_t x) {
    return (Sum)vbfdotq_lane_f32((float32x4_t)sum, (bfloat16x8_t)codes,
                                 vreinterpret_bf16_s32(int32x2_t{x, 0}), 0);
  }
  static VecF total(Sum sum) { return sum; }
  template <Encoding kEncoding>
  static constexpr int kVectors = is_four_bit(kEncoding) ? 4 : 2;
  static constexpr bool kHasParts = false;
  static constexpr bool kScalesX = false;
  template <Encoding kEncoding>
  static constexpr bool kTakesZero = kEncoding == Encoding::kInt4;
  // Enough sums for four products at a time that take four cycles each.
  template <int kVectorsOfLine, int kSums>
  static constexpr int kChains = kSums <= 4 ? kVectorsOfLine : 1;
};

// Codes of 8 bits by way of f32, whose upper half is the bf16.
template <Encoding kEncoding>
struct Decoder<Bf16Step, kEncoding> {
  static constexpr int kVectors = Bf16Step::kVectors<kEncoding>;
  VecU at(VecU word, int v) const {
    const auto value = [&](int byte) {
      if constexpr (kEncoding == Encoding::kInt8)
        return __builtin_convertvector((VecI)((word ^ 0x80808080u) << (24 - 8 * byte)) >> 24, VecF);
      else
        return code_value<kEncoding>((word >> (8 * byte)) & 255u);
    };
    // byte_column: bytes 0 and 2 are columns 0 and 1.
    return pair_of(value(v), value(v + 2));
  }
};

// Codes of 4 bits are looked up, the low ones of a word's bytes and then the high ones.
template <Encoding kEncoding>
requires(is_four_bit(kEncoding)) struct Decoder<Bf16Step, kEncoding> {
  static constexpr int kVectors = Bf16Step::kVectors<kEncoding>;
  const CodeTable table{[](int i) {
    if constexpr (kLooksUp<kEncoding>) return code_values<kEncoding>()[i];
    return static_cast<float>(i) - (kEncoding == Encoding::kQ4_0 ? kQ4Zero : 0);
  }};
  VecU at(VecU word, int v) const {
    const VecU codes = (v % 2 == 0 ? word : word >> 4) & 0x0f0f0f0fu;
    return table.pair(codes, v >= 2);
  }
};

// Codes of K types, a byte each; of up to four bits they are looked up.
struct KBf16Step {
  static constexpr int kStep = 2, kVectors = 2;
  static constexpr bool kScalesX = false;
  using Element = uint16_t;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.bf16; }
  template <Encoding kEncoding>
  struct Decoder {
    VecU at(VecU quad, int v) const {
      const auto value = [&](int byte) {
        return k_number((VecI)(quad >> (8 * byte) & 255u) - kKLayout<kEncoding>.zero);
      };
      return pair_of(value(v), value(v + 2));
    }
  };
  template <Encoding kEncoding>
  requires(kKLayout<kEncoding>.block_lines() <= 4) struct Decoder<kEncoding> {
    const CodeTable table{[](int i) {
      const uint32_t code = k_code_value<kEncoding>(static_cast<uint32_t>(i));
      return static_cast<float>(static_cast<int>(code) - kKLayout<kEncoding>.zero);
    }};
    VecU at(VecU quad, int v) const { return table.pair(quad, v == 1); }
  };
  static VecF total(Sum sum) { return sum; }
  template <bool>
  static Sum add(Sum sum, const VecU (&first)[2], const VecU (&second)[2], const Element* x) {
    const auto step = [](Sum to, VecU codes, const Element* from) {
      return Bf16Step::step<true>(to, codes, load_word(from));
    };
    sum = step(step(sum, first[0], x), first[1], x + 2);
    return step(step(sum, second[0], x + 4), second[1], x + 6);
  }
};

void quantised_bf16(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  if (call.format.is_k()) return quantised_k<KBf16Step>(call, row_begin, row_end);
  switch (call.format.encoding) {
    case Encoding::kInt4:
      return quantised_typed<Bf16Step, Encoding::kInt4>(call, row_begin, row_end);
    case Encoding::kQ4_0:
      return quantised_typed<Bf16Step, Encoding::kQ4_0>(call, row_begin, row_end);
    case Encoding::kInt8:
      return quantised_typed<Bf16Step, Encoding::kInt8>(call, row_begin, row_end);
    case Encoding::kNf4: return quantised_typed<Bf16Step, Encoding::kNf4>(call, row_begin, row_end);
    case Encoding::kMxfp4:
      return quantised_typed<Bf16Step, Encoding::kMxfp4>(call, row_begin, row_end);
    case Encoding::kIq4: return quantised_typed<Bf16Step, Encoding::kIq4>(call, row_begin, row_end);
    default: return quantised_typed<Bf16Step, Encoding::kFp8>(call, row_begin, row_end);
  }
}

}  // namespace
}  // namespace sluice::kernels
