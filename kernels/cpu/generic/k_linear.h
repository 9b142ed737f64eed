#pragma once
// Products with panels of GGUF's K types: few rows of x at a time, whose codes are decoded in
// registers. A part's sum (of whole numbers, of int8 x) is multiplied with its scale in f32.
#include "kernels/cpu/generic/k_units.h"
#include "kernels/cpu/generic/quantised_units.h"

namespace sluice::kernels {
namespace {

// What a product sees of a quad of columns: kVectors vectors of kStep columns each.

// int8: codes of six bits, so that pairs of products fit 16 bits; of wide ones each quad's do.
struct KInt8Step {
  static constexpr int kStep = 4, kVectors = 1;
  static constexpr bool kScalesX = true;
  using Element = int8_t;
  using Sum = VecI;
  static const Element* x(const QuantisedCall& call) { return call.int8; }
  template <Encoding kEncoding>
  struct Decoder {
    VecU at(VecU quad, int) const { return k_code_value<kEncoding>(quad); }
  };
  static VecF total(Sum sum) { return __builtin_convertvector(sum, VecF); }
  // A quad and the next one.
  template <bool kIsWide, typename Dots = ByteDots>
  static Sum add(Sum sum, const VecU (&first)[1], const VecU (&second)[1], const Element* x) {
    if constexpr (Dots::kHasParts) {
      typename Dots::Part part = {}, other = {};
      part = Dots::add(part, first[0], load_word(x));
      if constexpr (kIsWide)
        return sum + whole_of(part) + whole_of(Dots::add(other, second[0], load_word(x + 4)));
      return sum + whole_of(Dots::add(part, second[0], load_word(x + 4)));
    } else {
      return Dots::template step<true>(Dots::template step<true>(sum, first[0], load_word(x)),
                                       second[0], load_word(x + 4));
    }
  }
};

struct KF32Step {
  static constexpr int kStep = 1, kVectors = 4;
  static constexpr bool kScalesX = false;
  using Element = float;
  using Sum = VecF;
  static const Element* x(const QuantisedCall& call) { return call.x; }
  template <Encoding kEncoding>
  struct Decoder {
    VecU at(VecU quad, int v) const {
      const VecU code = k_code_value<kEncoding>(quad) >> (8 * v) & 255u;
      return (VecU)k_number((VecI)code - kKLayout<kEncoding>.zero);
    }
  };
  static VecF total(Sum sum) { return sum; }
  template <bool>
  static Sum add(Sum sum, const VecU (&first)[4], const VecU (&second)[4], const Element* x) {
    VecF other = {};  // two chains
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sum = add_product(sum, (VecF)first[v], VecF{} + x[v]);
      other = add_product(other, (VecF)second[v], VecF{} + x[4 + v]);
    }
    return sum + other;
  }
};

template <int kLines>
inline void fetch_ahead(const std::byte* at) {
#pragma GCC unroll 8
  for (int line = 0; line < kLines; ++line)
    __builtin_prefetch(at + line * kQuantLine + kStreamAhead);
}

template <typename Step, Encoding kEncoding, int M>
void k_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end, int64_t first) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  constexpr int kQuads = kLayout.part_columns / 4;
  // Zeros of whole numbers come off where their sums begin.
  constexpr bool kBeginsAtSum = Step::kScalesX && !kLayout.has_minima;
  const typename Step::template Decoder<kEncoding> decode;
  const auto* const x = Step::x(call) + first * call.ld;
  const float* const x_sums = call.sums + first * call.sum_groups;
  for (int64_t row = row_begin; row < row_end; row += kLanes) {
    const int part = part_of(row);
    const std::byte* group_at = unit_panel(call, row);
    VecF totals[M];
    for (int m = 0; m < M; ++m)
      totals[m] = call.bias ? get_unit(call.bias + row, row, call.n) : VecF{};
    for (int64_t group = 0; group < call.groups; ++group, group_at += kLayout.bytes()) {
      KScales<kEncoding> scales;
      scales.load(group_at, part);
      VecF sums_of_group[M] = {};
      const std::byte* at = k_lines(kLayout, group_at, 0, part);
      int64_t index = group * kLayout.parts();
      const auto* from = x + group * kLayout.columns;
      const VecF* scale = scales.scale;
      const VecF* minimum = scales.minimum;
      for (int block = 0; block < kLayout.blocks();
           ++block, at += kLayout.block_lines() * kQuantLine) {
        const KBlock<kEncoding> codes(at);
        if (part == 0) fetch_ahead<kLayout.block_lines()>(at);
#pragma GCC unroll 2
        for (int begin = 0; begin < 8; begin += kQuads, ++index, from += 4 * kQuads, ++scale) {
          typename Step::Sum sums[M] = {};
          if constexpr (kBeginsAtSum)
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
              sums[m] = VecI{} + load_word(x_sums + m * call.sum_groups + index);
#pragma GCC unroll 4
          for (int v = 0; v < kQuads; v += 2) {
            VecU a[Step::kVectors], b[Step::kVectors];
#pragma GCC unroll 4
            for (int i = 0; i < Step::kVectors; ++i) {
              a[i] = decode.at(codes.quad(begin + v), i);
              b[i] = decode.at(codes.quad(begin + v + 1), i);
            }
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
              sums[m] =
                  Step::template add<kLayout.is_wide()>(sums[m], a, b, from + m * call.ld + 4 * v);
          }
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            sums_of_group[m] += Step::total(sums[m]) * *scale;
            if constexpr (kLayout.has_minima)
              sums_of_group[m] -= *minimum * splat(x_sums[m * call.sum_groups + index]);
          }
          if constexpr (kLayout.has_minima) ++minimum;
        }
      }
      for (int m = 0; m < M; ++m)
        totals[m] += Step::kScalesX
                         ? sums_of_group[m] * splat(call.scales[(first + m) * call.groups + group])
                         : sums_of_group[m];
    }
    for (int m = 0; m < M; ++m) put_unit(call, row, first + m, totals[m]);
  }
}

constexpr int kMostKRows = kVectorRegisters >= 32 ? 8 : 4;

template <typename Step, Encoding kEncoding, int M = kMostKRows>
void k_rows_of(const QuantisedCall& call, int64_t row_begin, int64_t row_end, int64_t first,
               int64_t count) {
  if constexpr (M > 1)
    if (count < M) return k_rows_of<Step, kEncoding, M - 1>(call, row_begin, row_end, first, count);
  k_rows<Step, kEncoding, M>(call, row_begin, row_end, first);
}

template <typename Step, Encoding kEncoding>
void k_typed(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  few_at_a_time<typename Step::Element, kMostKRows>(
      call, row_begin, row_end, [&](int64_t row, int64_t last, int64_t first, int64_t count) {
        k_rows_of<Step, kEncoding>(call, row, last, first, count);
      });
}

template <typename Step>
void quantised_k(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  switch (call.format.encoding) {
    case Encoding::kQ2K: return k_typed<Step, Encoding::kQ2K>(call, row_begin, row_end);
    case Encoding::kQ3K: return k_typed<Step, Encoding::kQ3K>(call, row_begin, row_end);
    case Encoding::kQ4K: return k_typed<Step, Encoding::kQ4K>(call, row_begin, row_end);
    case Encoding::kQ5K: return k_typed<Step, Encoding::kQ5K>(call, row_begin, row_end);
    case Encoding::kQ4_1: return k_typed<Step, Encoding::kQ4_1>(call, row_begin, row_end);
    case Encoding::kQ5_1: return k_typed<Step, Encoding::kQ5_1>(call, row_begin, row_end);
    case Encoding::kIq1: return k_typed<Step, Encoding::kIq1>(call, row_begin, row_end);
    case Encoding::kIq2: return k_typed<Step, Encoding::kIq2>(call, row_begin, row_end);
    default: return k_typed<Step, Encoding::kQ6K>(call, row_begin, row_end);
  }
}

}  // namespace
}  // namespace sluice::kernels
