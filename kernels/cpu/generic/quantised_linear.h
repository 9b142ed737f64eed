#pragma once
// Products with quantised matrices: few rows of x (codes are decoded in registers) and many.
#include "kernels/cpu/generic/code_steps.h"
#include "kernels/cpu/generic/k_panels.h"

namespace sluice::kernels {
namespace {

// sum of a group -> the product's rows: scale (sum - zero sum of x).
template <typename Step, Encoding kEncoding>
inline VecF add_group(VecF total, typename Step::Sum sum, const UnitScales& scales,
                      VecF scaled_zero, float x_scale, float x_sum) {
  VecF value = Step::total(sum);
  if constexpr (Step::kScalesX) value *= splat(x_scale);
  total += value * scales.scale;
  if constexpr (Step::template kTakesZero<kEncoding>) total -= scaled_zero * splat(x_sum);
  return total;
}

// Where U units of w lie: beside each other in a panel, or in as many panels.
template <int U>
struct UnitPlaces {
  static constexpr bool kAreApart = U > kPanelParts;
  explicit UnitPlaces(const QuantisedCall& call)
      : apart(kAreApart ? call.panel_bytes : kLanes * 4) {}
  VecU codes(const std::byte* at, int u) const { return load_codes(at + u * apart); }
  // `at`: where the first one's lines of a group end.
  UnitScales scales(Encoding encoding, const std::byte* at, int part, int u) const {
    if constexpr (kAreApart) return load_scales(encoding, at + u * apart, 0);
    return load_scales(encoding, at - part * kLanes * 4, part + u);
  }
  void fetch(const std::byte* at, int part) const {
    if (part != 0) return;
    for (int u = 0; u < (kAreApart ? U : 1); ++u) __builtin_prefetch(at + u * apart + kStreamAhead);
  }
  int64_t apart;
};

// Few rows of x: the codes are decoded in registers, each read once from memory. U units of w at a
// time. kParts: how many narrower sums a group has; 0: any number. kIsOneSum: a
// group's sum is one, as it is for many rows, and not of independent chains. (Sums are not passed
// by reference: it would forget how vectors are aligned.)
template <typename Step, Encoding kEncoding, int U, int M, int kParts = 0, bool kIsOneSum = false>
void few_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end, int64_t first) {
  const Decoder<Step, kEncoding> decode;
  constexpr int kVectors = Decoder<Step, kEncoding>::kVectors;
  constexpr int kChains = kIsOneSum ? 1 : Step::template kChains<kVectors, U * M>;
  const UnitPlaces<U> places(call);
  const int64_t code_bytes = call.group_code_bytes;
  const int64_t groups = call.groups;
  const auto* x = Step::x(call) + first * call.ld;
  for (int64_t row = row_begin; row < row_end; row += U * kLanes) {
    const int part = part_of(row);
    const std::byte* at = unit_panel(call, row) + part * kLanes * 4;
    VecF totals[U][M];
    for (int u = 0; u < U; ++u)
      for (int m = 0; m < M; ++m)
        totals[u][m] =
            call.bias ? get_unit(call.bias + row + u * kLanes, row + u * kLanes, call.n) : VecF{};
    for (int64_t group = 0; group < groups; ++group) {
      typename Step::Sum sums[U][M][kChains] = {};
      const auto* from = x + group * call.group_columns;
      const std::byte* end = at + code_bytes;
      const auto over_line = [&](const auto& take) __attribute__((always_inline)) {
        places.fetch(at, part);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          VecU codes[U];
#pragma GCC unroll 4
          for (int u = 0; u < U; ++u) codes[u] = decode.at(places.codes(at, u), v);
#pragma GCC unroll 12
          for (int m = 0; m < M; ++m) {
            const int32_t word = load_word(from + m * call.ld + v * Step::kStep);
#pragma GCC unroll 4
            for (int u = 0; u < U; ++u) take(u, m, v, codes[u], word);
          }
        }
        at += kQuantLine;
        from += kVectors * Step::kStep;
      };
      if constexpr (Step::kHasParts) {
        const auto add_part = [&](bool is_first) __attribute__((always_inline)) {
          typename Step::Part parts[U][M] = {};
#pragma GCC unroll 4
          for (int line = 0; line < Step::kPartLines; ++line)
            over_line([&](int u, int m, int, VecU codes, int32_t word) __attribute__((
                always_inline)) { parts[u][m] = Step::add(parts[u][m], codes, word); });
#pragma GCC unroll 2
          for (int u = 0; u < U; ++u)
#pragma GCC unroll 12
            for (int m = 0; m < M; ++m) {
              const auto whole = whole_of(parts[u][m]);
              sums[u][m][0] = is_first ? whole : sums[u][m][0] + whole;
            }
        };
        add_part(true);
        if constexpr (kParts == 2) add_part(false);
        if constexpr (kParts == 0)
          while (at < end) add_part(false);
      } else {
        while (at < end)
          over_line([&](int u, int m, int v, VecU code, int32_t xs) __attribute__((always_inline)) {
            sums[u][m][v % kChains] =
                Step::template step<is_four_bit(kEncoding)>(sums[u][m][v % kChains], code, xs);
          });
      }
      for (int u = 0; u < U; ++u) {
        const UnitScales scales = places.scales(kEncoding, at, part, u);
        for (int m = 0; m < M; ++m) {
          typename Step::Sum sum = sums[u][m][0];
          for (int c = 1; c < kChains; ++c) sum += sums[u][m][c];
          const int64_t index = (first + m) * groups + group;
          totals[u][m] = add_group<Step, kEncoding>(
              totals[u][m], sum, scales, scales.scale * scales.zero,
              Step::kScalesX ? call.scales[index] : 1.0f, call.sums[index]);
        }
      }
      at += call.format.scale_bytes();
    }
    for (int u = 0; u < U; ++u)
      for (int m = 0; m < M; ++m) put_unit(call, row + u * kLanes, first + m, totals[u][m]);
  }
}

// Rows of x that one decoding of the codes serves: their sums fill the registers, of a whole panel
// where vectors or registers are short.
constexpr bool kHasManyRegisters = kVectorRegisters >= 32;
constexpr int kUnits = kHasManyRegisters && kLanes >= 8 ? 1 : kPanelParts;
template <typename Step>
constexpr int most_few_rows() {
  if constexpr (kHasManyRegisters)
    return kUnits == 1 ? 12 : 24 / kUnits;
  else
    return Step::kRowsOfTwo;
}
template <typename Step>
constexpr int kMostFewRows = most_few_rows<Step>();

// Few rows whose groups have one sum: of a single row and a unit, four panels at a time, whose sums
// need not wait for each other.
template <typename Step, Encoding kEncoding, int M>
void one_sum_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end, int64_t first) {
  if constexpr (kUnits == 1 && kPanelParts == 1 && M == 1) {
    constexpr int kPanels = 4;
    const int64_t whole = (row_end - row_begin) / (kPanels * kPanelRows) * (kPanels * kPanelRows);
    few_rows<Step, kEncoding, kPanels, M, 0, true>(call, row_begin, row_begin + whole, first);
    row_begin += whole;
  }
  few_rows<Step, kEncoding, kUnits, M, 0, true>(call, row_begin, row_end, first);
}

template <typename Step, Encoding kEncoding, int M = kMostFewRows<Step>>
void few_of(const QuantisedCall& call, int64_t row_begin, int64_t row_end, int64_t first,
            int64_t count) {
  if constexpr (M > 1)
    if (count < M) return few_of<Step, kEncoding, M - 1>(call, row_begin, row_end, first, count);
  if constexpr (Step::kHasParts) {
    const int64_t parts = call.group_code_bytes / (Step::kPartLines * kQuantLine);
    if (parts == 1) return few_rows<Step, kEncoding, kUnits, M, 1>(call, row_begin, row_end, first);
    if (parts == 2) return few_rows<Step, kEncoding, kUnits, M, 2>(call, row_begin, row_end, first);
  }
  constexpr int kSums = kUnits * M, kVectors = Decoder<Step, kEncoding>::kVectors;
  constexpr int kChains = Step::template kChains<kVectors, kSums>;
  if constexpr (kChains > 1 && !Step::kScalesX)  // whole numbers are the same in any order
    if (call.order == SumOrder::kByRow)
      return one_sum_rows<Step, kEncoding, M>(call, row_begin, row_end, first);
  few_rows<Step, kEncoding, kUnits, M>(call, row_begin, row_end, first);
}

template <typename Step, Encoding kEncoding>
void quantised_typed(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  few_at_a_time<typename Step::Element, kMostFewRows<Step>>(
      call, row_begin, row_end, [&](int64_t row, int64_t last, int64_t first, int64_t count) {
        few_of<Step, kEncoding>(call, row, last, first, count);
      });
}

void quantised_int8(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  if (call.format.is_k()) return quantised_k_int8(call, row_begin, row_end);
  if (call.format.encoding == Encoding::kInt4)
    return quantised_typed<Int8Step, Encoding::kInt4>(call, row_begin, row_end);
  if (call.format.encoding == Encoding::kQ4_0)
    return quantised_typed<Int8Step, Encoding::kQ4_0>(call, row_begin, row_end);
  quantised_typed<Int8StepOfBytes, Encoding::kInt8>(call, row_begin, row_end);
}

void quantised_f32(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  if (call.format.is_k()) return quantised_k<KF32Step>(call, row_begin, row_end);
  switch (call.format.encoding) {
    case Encoding::kInt4:
      return quantised_typed<F32Step, Encoding::kInt4>(call, row_begin, row_end);
    case Encoding::kQ4_0:
      return quantised_typed<F32Step, Encoding::kQ4_0>(call, row_begin, row_end);
    case Encoding::kInt8:
      return quantised_typed<F32Step, Encoding::kInt8>(call, row_begin, row_end);
    case Encoding::kNf4: return quantised_typed<F32Step, Encoding::kNf4>(call, row_begin, row_end);
    case Encoding::kMxfp4:
      return quantised_typed<F32Step, Encoding::kMxfp4>(call, row_begin, row_end);
    case Encoding::kIq4: return quantised_typed<F32Step, Encoding::kIq4>(call, row_begin, row_end);
    default: return quantised_typed<F32Step, Encoding::kFp8>(call, row_begin, row_end);
  }
}

// Many rows of f32 x, arranged in tiles: columns are unpacked once for all of them and multiplied
// as those of plain weights are.
void quantised_panels_f32(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  alignas(64) float panel[kDepth * kPanel];
  const int64_t tiles = tile_count(call.m, kTile);
  for (int64_t row = row_begin; row < row_end; row += kPanel) {
    const int64_t rows = row_end - row < kPanel ? row_end - row : kPanel;
    for (int64_t begin = 0; begin < call.k; begin += kDepth) {
      const int64_t depth = call.k - begin < kDepth ? call.k - begin : kDepth;
      for (int half = 0; half < 2; ++half) {
        const int64_t from =
            half * kLanes < rows ? row + half * kLanes : row;  // a half without rows is of no use
        unpack_unit(call.format, unit_panel(call, from), call.k, part_of(from), begin, depth,
                    panel + half * kLanes, kPanel);
      }
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(call.m, kTile, tile);
        const auto* x =
            reinterpret_cast<const float*>(call.tiles) + (tile * call.k + begin) * kTileRoom;
        panel_tile_of(tile_begin(call.m, kTile, tile + 1) - at, x, panel, depth,
                      {nullptr, 0, 0, depth},
                      {call.y + at * call.ldy + row, call.ldy, rows,
                       call.bias ? call.bias + row : nullptr, begin > 0});
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
