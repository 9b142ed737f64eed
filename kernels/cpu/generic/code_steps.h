#pragma once
// How products take codes and x: what a vector of codes is beside int8 and f32 x, and one step of a
// sum (beside bf16 x: avx512_bf16/quantised_linear.h, neon_bf16/quantised_linear.h).
#include <type_traits>

#include "kernels/cpu/generic/quantised_units.h"

namespace sluice::kernels {
namespace {

// Whether int8 x beside 8-bit codes is kept as int16.
constexpr bool kWidensInt8 = !std::is_void_v<ShortDots>;

// What a product sees of its codes: how many columns one vector of codes holds (kStep), vector v of
// a line's word (at), and a sum's next step. kHasParts: sums of a few lines are kept narrower at
// first.

// int8: four columns a vector, beside four int8 of a row of x.
struct Int8Step : ByteDots {
  static constexpr int kStep = 4;
  using Element = int8_t;
  using Sum = VecI;
  static const Element* x(const QuantisedCall& call) { return call.int8; }
  static VecF total(Sum sum) { return __builtin_convertvector(sum, VecF); }
  // Vectors of codes of a line, in order of columns.
  template <Encoding kEncoding>
  static constexpr int kVectors = is_four_bit(kEncoding) ? 2 : 1;
  static constexpr int kRowsOfTwo = 6;  // of x, beside two units
  template <Encoding kEncoding>
  static VecU at(VecU word, int v) {
    if constexpr (is_four_bit(kEncoding))
      return (word >> (4 * v)) & 0x0f0f0f0fu;
    else
      return word;
  }
  // The product of a group is in units of both scales.
  static constexpr bool kScalesX = true;
  // Codes are exact whatever their scale, so zeros come off with the sums.
  template <Encoding kEncoding>
  static constexpr bool kTakesZero = true;
  template <int kVectorsOfLine, int kSums>
  static constexpr int kChains = kSums == 1 ? kVectorsOfLine : 1;
};

// int8 beside 8-bit codes without a dot product of bytes, whose pairs would not fit 16 bits: two
// columns a vector, both as int16.
template <typename Dots>
struct WideInt8Step {
  static constexpr int kStep = 2;
  using Element = int16_t;
  using Sum = VecI;
  static const Element* x(const QuantisedCall& call) {
    return reinterpret_cast<const int16_t*>(call.int8);
  }
  static constexpr bool kHasParts = false;
  static constexpr int kRowsOfTwo = 6;  // of x, beside two units
  template <bool kIsNarrow>
  static Sum step(Sum sum, VecU codes, int32_t x) {
    return Dots::step(sum, codes, x);
  }
  static VecF total(Sum sum) { return __builtin_convertvector(sum, VecF); }
  template <Encoding kEncoding>
  static constexpr int kVectors = 2;
  template <Encoding kEncoding>
  static VecU at(VecU word, int v) {  // byte_column: bytes 0 and 2 are columns 0 and 1
    return v == 0 ? word & 0x00ff00ffu : Dots::odd_bytes(word);
  }
  static constexpr bool kScalesX = true;
  template <Encoding kEncoding>
  static constexpr bool kTakesZero = true;
  template <int kVectorsOfLine, int kSums>
  static constexpr int kChains = kSums < 4 ? kVectorsOfLine : 1;
};

// Of int8 x beside 8-bit codes.
using Int8StepOfBytes = std::conditional_t<kWidensInt8, WideInt8Step<ShortDots>, Int8Step>;

// f32: a column a vector. 4-bit codes are converted where they are in their word; x makes up for it
// (arrange_f32_codes).
struct F32Step {
  static constexpr int kStep = 1;
  using Element = float;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.x; }
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static Sum step(Sum sum, VecU codes, int32_t x) {
    const VecF factor = (VecF)(VecI{} + x);
    return add_product(sum, (VecF)codes, factor);
  }
  static constexpr int kRowsOfTwo = 4;
  static VecF total(Sum sum) { return sum; }
  template <Encoding kEncoding>
  static constexpr int kVectors = kLineColumns<kEncoding>;
  static constexpr int kLastNibble = 7;
  template <Encoding kEncoding>
  static VecU at(VecU word, int v) {
    if constexpr (has_int4_codes(kEncoding))
      return (VecU) __builtin_convertvector(
          (VecI)(v == kLastNibble ? word >> 28 : word & (15u << (4 * v))), VecF);
    else if constexpr (kLooksUp<kEncoding>)
      return (VecU)table_value<kEncoding>(word >> (4 * v));
    else if constexpr (kEncoding == Encoding::kInt8)
      return (VecU) __builtin_convertvector((VecI)((word ^ 0x80808080u) << (24 - 8 * v)) >> 24,
                                            VecF);
    else
      return (VecU)code_value<kEncoding>((word >> (8 * v)) & 255u);
  }
  // What x is multiplied with beside place v.
  static constexpr float place_factor(Encoding encoding, int v) {
    return has_int4_codes(encoding) && v != kLastNibble ? 1.0f / static_cast<float>(1u << (4 * v))
                                                        : 1.0f;
  }
  static constexpr bool kScalesX = false;
  template <Encoding kEncoding>
  static constexpr bool kTakesZero = has_int4_codes(kEncoding);
  // Enough sums for two multiply-adds at a time that take four cycles each.
  template <int kVectorsOfLine, int kSums>
  static constexpr int kChains = kSums >= 8                   ? 1
                                 : 8 / kSums < kVectorsOfLine ? 8 / kSums
                                                              : kVectorsOfLine;
};

// Turns the words of lines into vectors of codes.
template <typename Step, Encoding kEncoding>
struct Decoder {
  static constexpr int kVectors = Step::template kVectors<kEncoding>;
  VecU at(VecU word, int v) const { return Step::template at<kEncoding>(word, v); }
};

}  // namespace
}  // namespace sluice::kernels
