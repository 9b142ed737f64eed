#pragma once
// Products of many rows of bf16 x with quantised matrices: codes of 32 rows of w are decoded once
// for all tiles of x, which are arranged as for plain bf16 products. Bound by multiply-adds. (int8
// x gains nothing but beside K types, generic/k_panels.h: other codes take an instruction or none.)
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/avx512_bf16/linear.h"
#include "kernels/cpu/avx512_bf16/quantised_linear.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kChunkColumns = 1024;  // decoded at a time
constexpr int64_t kChunkGroups = kChunkColumns / 16;
constexpr int64_t kFetchPairs = 16;  // between fetches of what comes next

// A chunk of two units: pairs of columns as bf16, `pairs` of them a group, and the groups' scales.
struct CodeChunk {
  __m512i low[kChunkColumns / 2], high[kChunkColumns / 2];
  int64_t groups, pairs;
  VecF scale[2][kChunkGroups], scaled_zero[2][kChunkGroups];
};

// Sums of a tile's rows of x, from the chunk's first group on.
struct TileSums {
  const float* sums;
  int64_t groups;  // to the next row
};

template <Encoding kEncoding, int M>
void codes_tile(const __m512i* x, const CodeChunk& chunk, const TileSums& of_x, NextLines<2> next,
                const TileOutput& out) {
  VecF totals[2][M];
  const auto begin_total = [&](int m, int column, __mmask16 mask) {
    if (out.adds) return (VecF)_mm512_maskz_loadu_ps(mask, out.y + m * out.ldy + column);
    return out.bias ? (VecF)_mm512_maskz_loadu_ps(mask, out.bias + column) : VecF{};
  };
  for (int m = 0; m < M; ++m) {
    totals[0][m] = begin_total(m, 0, out.low);
    totals[1][m] = begin_total(m, 16, out.high);
  }
  for (int64_t group = 0; group < chunk.groups; ++group) {
    const __m512i* const group_low = chunk.low + group * chunk.pairs;
    const __m512i* const group_high = chunk.high + group * chunk.pairs;
    const __m512i* const group_x = x + group * chunk.pairs;
    __m512 low[M], high[M];
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) low[m] = high[m] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < chunk.pairs; begin += kFetchPairs) {
      const int64_t end = least(chunk.pairs, begin + kFetchPairs);
      next.fetch();
      for (int64_t p = begin; p < end; ++p) {
        const auto a = (__m512bh)group_low[p], b = (__m512bh)group_high[p];
#pragma GCC unroll 12
        for (int m = 0; m < M; ++m) {
          const auto v = (__m512bh)splat_pair(group_x + p, m);
          low[m] = add_bf16_products(low[m], a, v);
          high[m] = add_bf16_products(high[m], b, v);
        }
      }
    }
    const UnitScales first{chunk.scale[0][group], {}}, second{chunk.scale[1][group], {}};
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const float sum = of_x.sums[m * of_x.groups + group];
      totals[0][m] = add_group<Bf16Step, kEncoding>(totals[0][m], (VecF)low[m], first,
                                                    chunk.scaled_zero[0][group], 1, sum);
      totals[1][m] = add_group<Bf16Step, kEncoding>(totals[1][m], (VecF)high[m], second,
                                                    chunk.scaled_zero[1][group], 1, sum);
    }
  }
  for (int m = 0; m < M; ++m) {
    _mm512_mask_storeu_ps(out.y + m * out.ldy, out.low, (__m512)totals[0][m]);
    _mm512_mask_storeu_ps(out.y + m * out.ldy + 16, out.high, (__m512)totals[1][m]);
  }
}

// codes_tile<count>.
template <Encoding kEncoding, int M = kTile>
inline void codes_tile_of(int64_t count, const __m512i* x, const CodeChunk& chunk,
                          const TileSums& of_x, const NextLines<2>& next, const TileOutput& out) {
  if (count == M) return codes_tile<kEncoding, M>(x, chunk, of_x, next, out);
  if constexpr (M > 1) codes_tile_of<kEncoding, M - 1>(count, x, chunk, of_x, next, out);
}

// Panels of groups, whose scales follow their codes. A chunk is whole groups or a part of one.
template <Encoding kEncoding>
struct GroupCodes {
  static constexpr Encoding kAs = kEncoding;
  static constexpr int64_t kColumns = kLineColumns<kEncoding>;
  const int64_t columns, code_bytes, group_bytes;

  explicit GroupCodes(const QuantisedCall& call)
      : columns(call.group_columns),
        code_bytes(call.group_code_bytes),
        group_bytes(code_bytes + call.format.scale_bytes()) {}
  // Where a column's codes lie in a panel.
  int64_t offset(int64_t column) const {
    return column / columns * group_bytes + column % columns / kColumns * kQuantLine;
  }
  // The groups of a chunk of up to `count` columns from `begin` on, and their pairs.
  void cut(int64_t begin, int64_t count, CodeChunk& chunk) const {
    chunk.groups = columns <= count ? count / columns : 1;
    chunk.pairs = least(columns - begin % columns, count) / 2;
  }
  void decode(const std::byte* panel, int64_t begin, int unit, CodeChunk& chunk) const {
    const Decoder<Bf16Step, kEncoding> decode;
    constexpr int kVectors = Decoder<Bf16Step, kEncoding>::kVectors;
    const std::byte* lines = panel + begin / columns * group_bytes;
    const int64_t first_line = begin % columns / kColumns;
    __m512i* to = unit == 0 ? chunk.low : chunk.high;
    for (int64_t g = 0; g < chunk.groups; ++g, lines += group_bytes, to += chunk.pairs) {
      for (int64_t i = 0; i < chunk.pairs; i += kVectors) {
        const VecU word = load_codes(lines + (first_line + i / kVectors) * kQuantLine);
        for (int v = 0; v < kVectors; ++v) to[i + v] = (__m512i)decode.at(word, v);
      }
      const UnitScales scales = load_scales(kEncoding, lines + code_bytes, 0);
      chunk.scale[unit][g] = scales.scale;
      chunk.scaled_zero[unit][g] = scales.scale * scales.zero;
    }
  }
};

// Panels of a K type: the parts of its groups are the chunk's groups, and their minima come off as
// zeros do.
template <Encoding kEncoding>
struct KCodes {
  static constexpr KLayout kLayout = kKLayout<kEncoding>;
  static constexpr Encoding kAs = kLayout.has_minima ? Encoding::kInt4 : Encoding::kInt8;

  explicit KCodes(const QuantisedCall&) {}
  int64_t offset(int64_t column) const { return column / kLayout.columns * kLayout.bytes(); }
  void cut(int64_t, int64_t count, CodeChunk& chunk) const {
    chunk.groups = count / kLayout.part_columns;
    chunk.pairs = kLayout.part_columns / 2;
  }
  void decode(const std::byte* panel, int64_t begin, int unit, CodeChunk& chunk) const {
    const KBf16Step::Decoder<kEncoding> decode;
    KScales<kEncoding> scales;
    const std::byte* lines = panel + offset(begin);
    __m512i* to = unit == 0 ? chunk.low : chunk.high;
    for (int64_t first = 0; first < chunk.groups;
         first += kLayout.parts(), lines += kLayout.bytes()) {
      scales.load(lines, 0);
      for (int i = 0; i < kLayout.parts(); ++i) {
        chunk.scale[unit][first + i] = scales.scale[i];
        chunk.scaled_zero[unit][first + i] =
            kLayout.has_minima ? scales.minimum[kLayout.has_minima ? i : 0] : VecF{};
      }
      for (int block = 0; block < kLayout.blocks(); ++block, to += 16) {
        const KBlock<kEncoding> codes(k_lines(kLayout, lines, block, 0));
#pragma GCC unroll 8
        for (int v = 0; v < 8; ++v) {
          to[2 * v] = (__m512i)decode.at(codes.quad(v), 0);
          to[2 * v + 1] = (__m512i)decode.at(codes.quad(v), 1);
        }
      }
    }
  }
};

template <typename Codes>
void many_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  alignas(64) CodeChunk chunk;
  const Codes codes(call);
  const int64_t padded = call.format.padded_columns(call.k);
  const int64_t tiles = tile_count(call.m, kTile), part = padded / call.sum_groups;
  for (int64_t row = row_begin; row < row_end; row += 2 * kLanes) {
    const int64_t rows = least(call.n - row, 2 * kLanes), first = least(rows, kLanes);
    const std::byte* const low = unit_panel(call, row);
    const std::byte* const unit[2] = {low, rows > kLanes ? low + call.panel_bytes : low};
    for (int64_t begin = 0, count = 0; begin < padded; begin += count) {
      codes.cut(begin, least(padded - begin, kChunkColumns), chunk);
      count = chunk.groups * chunk.pairs * 2;
      for (int u = 0; u < 2; ++u) codes.decode(unit[u], begin, u, chunk);
      // The next chunk: of these rows, or the next ones' first.
      const bool ends_rows = begin + count == padded;
      const bool has_next = !ends_rows || row + 2 * kLanes < row_end;
      const int64_t next_begin = ends_rows ? 0 : begin + count;
      const int64_t ahead = codes.offset(next_begin) + (ends_rows ? 2 * call.panel_bytes : 0);
      const int64_t next_bytes =
          has_next ? codes.offset(next_begin + least(padded - next_begin, kChunkColumns)) -
                         codes.offset(next_begin)
                   : 0;
      const int64_t steps = chunk.groups * ((chunk.pairs + kFetchPairs - 1) / kFetchPairs);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(call.m, kTile, tile);
        const auto* x = reinterpret_cast<const __m512i*>(
                            call.tiles + tile * bf16_tile_bytes(padded, kTileRoom)) +
                        begin / 2;
        codes_tile_of<Codes::kAs>(
            tile_begin(call.m, kTile, tile + 1) - at, x, chunk,
            {call.sums + at * call.sum_groups + begin / part, call.sum_groups},
            NextLines<2>({unit[0] + ahead, unit[1] + ahead}, next_bytes, tile, tiles, steps),
            {call.y + at * call.ldy + row, call.ldy, call.bias ? call.bias + row : nullptr,
             begin > 0, static_cast<__mmask16>((1u << first) - 1),
             static_cast<__mmask16>((1u << (rows - first)) - 1)});
      }
    }
  }
}

void quantised_panels_bf16(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  switch (call.format.encoding) {
    case Encoding::kInt4: return many_rows<GroupCodes<Encoding::kInt4>>(call, row_begin, row_end);
    case Encoding::kQ4_0: return many_rows<GroupCodes<Encoding::kQ4_0>>(call, row_begin, row_end);
    case Encoding::kInt8: return many_rows<GroupCodes<Encoding::kInt8>>(call, row_begin, row_end);
    case Encoding::kNf4: return many_rows<GroupCodes<Encoding::kNf4>>(call, row_begin, row_end);
    case Encoding::kMxfp4: return many_rows<GroupCodes<Encoding::kMxfp4>>(call, row_begin, row_end);
    case Encoding::kIq4: return many_rows<GroupCodes<Encoding::kIq4>>(call, row_begin, row_end);
    case Encoding::kQ2K: return many_rows<KCodes<Encoding::kQ2K>>(call, row_begin, row_end);
    case Encoding::kQ3K: return many_rows<KCodes<Encoding::kQ3K>>(call, row_begin, row_end);
    case Encoding::kQ4K: return many_rows<KCodes<Encoding::kQ4K>>(call, row_begin, row_end);
    case Encoding::kQ5K: return many_rows<KCodes<Encoding::kQ5K>>(call, row_begin, row_end);
    case Encoding::kQ6K: return many_rows<KCodes<Encoding::kQ6K>>(call, row_begin, row_end);
    case Encoding::kQ4_1: return many_rows<KCodes<Encoding::kQ4_1>>(call, row_begin, row_end);
    case Encoding::kQ5_1: return many_rows<KCodes<Encoding::kQ5_1>>(call, row_begin, row_end);
    case Encoding::kIq1: return many_rows<KCodes<Encoding::kIq1>>(call, row_begin, row_end);
    case Encoding::kIq2: return many_rows<KCodes<Encoding::kIq2>>(call, row_begin, row_end);
    default: return many_rows<GroupCodes<Encoding::kFp8>>(call, row_begin, row_end);
  }
}

}  // namespace
}  // namespace sluice::kernels
