#pragma once
// Products with quantised matrices on bf16 x: codes are pairs of bf16, exactly.
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/generic/quantised_linear.h"

namespace sluice::kernels {
namespace {

// bf16: pairs of columns, codes turned into bf16 exactly (the values of NF4 are rounded).
struct Bf16Step {
  static constexpr int kStep = 2;
  using Element = uint16_t;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.bf16; }
  template <bool kIsNarrow>
  static Sum step(Sum sum, VecU codes, int32_t x) {
    return (Sum)_mm512_dpbf16_ps((__m512)sum, (__m512bh)codes, (__m512bh)_mm512_set1_epi32(x));
  }
  static VecF total(Sum sum) { return sum; }
  template <Encoding kEncoding>
  static constexpr int kVectors = is_four_bit(kEncoding) ? 4 : 2;
  // Two columns that are exact in bf16, the first in the low half.
  static VecU pair(VecF first, VecF second) {
    return (VecU)first >> 16 | ((VecU)second & 0xffff0000u);
  }
  // bf16 values of 4-bit codes, twice: a lookup takes 5 bits, whatever the fifth is.
  template <Encoding kEncoding>
  static __m512i table() {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      const float value = [i] {
        if constexpr (kLooksUp<kEncoding>) return code_values<kEncoding>()[i % 16];
        return static_cast<float>(i % 16) - (kEncoding == Encoding::kQ4_0 ? kQ4Zero : 0);
      }();
      uint32_t bits;
      __builtin_memcpy(&bits, &value, 4);
      values[i] = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
    return _mm512_load_si512(values);
  }
  static constexpr bool kHasParts = false;
  template <Encoding kEncoding>
  static VecU at(VecU word, int v, __m512i table) {
    if constexpr (is_four_bit(kEncoding)) {
      return (VecU)_mm512_permutexvar_epi16((__m512i)(word >> (4 * v)), table);
    } else {
      const VecF zero = splat(kEncoding == Encoding::kInt8 ? 128.0f : 0.0f);
      const auto value = [&](int byte) {
        return code_value<kEncoding>((word >> (8 * byte)) & 255u) - zero;
      };
      return pair(value(v), value(v + 2));  // byte_column: bytes 0 and 2 are columns 0 and 1
    }
  }
  static constexpr bool kScalesX = false;
  template <Encoding kEncoding>
  static constexpr bool kTakesZero = kEncoding == Encoding::kInt4;
  template <int kVectorsOfLine, int kSums>
  static constexpr int kChains = kSums == 1 ? kVectorsOfLine : 1;
};

template <Encoding kEncoding>
struct Decoder<Bf16Step, kEncoding> {
  static constexpr int kVectors = Bf16Step::kVectors<kEncoding>;
  __m512i table;
  Decoder() {
    if constexpr (is_four_bit(kEncoding)) table = Bf16Step::table<kEncoding>();
  }
  VecU at(VecU word, int v) const { return Bf16Step::at<kEncoding>(word, v, table); }
};

// Codes of K types are looked up, two of 16 bits at a time.
struct KBf16Step {
  static constexpr int kStep = 2, kVectors = 2;
  static constexpr bool kScalesX = false;
  using Element = uint16_t;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.bf16; }
  template <Encoding kEncoding>
  struct Decoder {
    __m512i low, high;
    Decoder() {
      alignas(64) uint16_t values[64];
      for (uint32_t i = 0; i < 64; ++i) {
        const auto value = static_cast<float>(static_cast<int>(k_code_value<kEncoding>(i)) -
                                              kKLayout<kEncoding>.zero);
        uint32_t bits;
        __builtin_memcpy(&bits, &value, 4);
        values[i] = static_cast<uint16_t>(bits >> 16);  // exact
      }
      low = _mm512_load_si512(values);
      high = _mm512_load_si512(values + 32);
    }
    // byte_column: bytes 0 and 2 are columns 0 and 1.
    VecU at(VecU quad, int v) const {
      return (VecU)_mm512_permutex2var_epi16(low, (__m512i)(v == 0 ? quad : quad >> 8), high);
    }
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
