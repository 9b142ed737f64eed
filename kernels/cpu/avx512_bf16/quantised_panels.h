#pragma once
// Products of many rows of bf16 x with quantised matrices: codes of 32 rows of w are decoded once
// for all tiles of x, which are arranged as for plain bf16 products. Bound by multiply-adds. (int8
// x gains nothing: its codes are decoded in an instruction or none.)
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/avx512_bf16/linear.h"
#include "kernels/cpu/avx512_bf16/quantised_linear.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kChunkColumns = 1024;  // decoded at a time
constexpr int64_t kChunkGroups = kChunkColumns / 16;
constexpr int64_t kFetchPairs = 16;  // between fetches of what comes next

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A chunk of two units: pairs of columns as bf16, `pairs` of them a group, and the groups' scales.
struct CodeChunk {
  __m512i low[kChunkColumns / 2], high[kChunkColumns / 2];
  int64_t groups, pairs;
  VecF scale[2][kChunkGroups], scaled_zero[2][kChunkGroups];
};

// What the next chunk will read of each unit. For every kFetchPairs that are multiplied, those of
// its lines with the same pairs are fetched whose numbers, counted over both units, are in [begin,
// end).
struct NextCodes {
  const std::byte* unit[2];
  int64_t line_pairs;  // that a line holds
  int64_t begin, end;
};

// Sums of a tile's rows of x, from the chunk's first group on.
struct TileSums {
  const float* sums;
  int64_t groups;  // to the next row
};

template <Encoding kEncoding, int M>
void codes_tile(const __m512i* x, const CodeChunk& chunk, const TileSums& of_x,
                const NextCodes& next, const TileOutput& out) {
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
      const int64_t line = (group * (chunk.pairs + next.line_pairs) + begin) / next.line_pairs;
      for (int64_t i = next.begin; i < next.end; ++i)
        __builtin_prefetch(next.unit[i % 2] + (line + i / 2) * kQuantLine, 0, 2);
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
                          const TileSums& of_x, const NextCodes& next, const TileOutput& out) {
  if (count == M) return codes_tile<kEncoding, M>(x, chunk, of_x, next, out);
  if constexpr (M > 1) codes_tile_of<kEncoding, M - 1>(count, x, chunk, of_x, next, out);
}

// Decodes columns [begin, begin + groups * columns) of two units, whole groups or (groups: 1) a
// part of one.
template <Encoding kEncoding>
void decode_chunk(const QuantisedCall& call, const std::byte* const (&unit)[2], int64_t begin,
                  int64_t columns, CodeChunk& chunk) {
  const Decoder<Bf16Step, kEncoding> decode;
  constexpr int kVectors = Decoder<Bf16Step, kEncoding>::kVectors;
  const int64_t group_columns = call.group_columns;
  const int64_t code_bytes = call.group_code_bytes;
  const int64_t group_bytes = code_bytes + call.format.scale_bytes();
  const int64_t group = begin / group_columns,
                first_line = (begin - group * group_columns) / kLineColumns<kEncoding>;
  chunk.pairs = columns / 2;
  for (int u = 0; u < 2; ++u)
    for (int64_t g = 0; g < chunk.groups; ++g) {
      const std::byte* const lines = unit[u] + (group + g) * group_bytes;
      __m512i* const to = (u == 0 ? chunk.low : chunk.high) + g * chunk.pairs;
      for (int64_t i = 0; i < chunk.pairs; i += kVectors) {
        const VecU word = load_codes(lines + (first_line + i / kVectors) * kQuantLine);
        for (int v = 0; v < kVectors; ++v) to[i + v] = (__m512i)decode.at(word, v);
      }
      const UnitScales scales = load_scales(kEncoding, lines + code_bytes, 0);
      chunk.scale[u][g] = scales.scale;
      chunk.scaled_zero[u][g] = scales.scale * scales.zero;
    }
}

template <Encoding kEncoding>
void many_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  alignas(64) CodeChunk chunk;
  constexpr int64_t kLinePairs = kLineColumns<kEncoding> / 2;
  const int64_t columns = call.group_columns, padded = call.format.padded_columns(call.k);
  const int64_t groups = call.groups, panel_bytes = call.panel_bytes;
  const int64_t tiles = tile_count(call.m, kTile);
  for (int64_t row = row_begin; row < row_end; row += 2 * kLanes) {
    const int64_t rows = least(call.n - row, 2 * kLanes), first = least(rows, kLanes);
    const std::byte* const low = unit_panel(call, row);
    const std::byte* const unit[2] = {low, rows > kLanes ? low + panel_bytes : low};
    for (int64_t begin = 0, count = 0; begin < padded; begin += count) {
      const int64_t group = begin / columns;
      chunk.groups = columns < kChunkColumns ? least(padded - begin, kChunkColumns) / columns : 1;
      const int64_t part = least((group + 1) * columns - begin, kChunkColumns);
      decode_chunk<kEncoding>(call, unit, begin, part, chunk);
      count = chunk.groups * part;
      const bool ends_rows = begin + count == padded;
      const bool has_next = !ends_rows || row + 2 * kLanes < row_end;
      const int64_t line = (begin + count) / columns * (columns / 2 / kLinePairs + 1) +
                           (begin + count) % columns / 2 / kLinePairs;
      const int64_t ahead = ends_rows ? 2 * panel_bytes : line * kQuantLine;
      const int64_t lines = has_next ? 2 * kFetchPairs / kLinePairs : 0;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(call.m, kTile, tile);
        const auto* x =
            reinterpret_cast<const __m512i*>(call.tiles + tile * pair_tile_bytes(padded)) +
            begin / 2;
        codes_tile_of<kEncoding>(
            tile_begin(call.m, kTile, tile + 1) - at, x, chunk,
            {call.sums + at * groups + group, groups},
            {{unit[0] + ahead, unit[1] + ahead},
             kLinePairs,
             lines * tile / tiles,
             lines * (tile + 1) / tiles},
            {call.y + at * call.ldy + row, call.ldy, call.bias ? call.bias + row : nullptr,
             begin > 0, static_cast<__mmask16>((1u << first) - 1),
             static_cast<__mmask16>((1u << (rows - first)) - 1)});
      }
    }
  }
}

// Decodes `groups` groups of a unit of a K type from `at` on; its parts are the chunk's groups.
template <Encoding kEncoding>
void decode_k_chunk(const std::byte* at, int64_t groups, int unit, CodeChunk& chunk) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  const KBf16Step::Decoder<kLayout.zero> decode;
  KScales<kEncoding> scales;
  __m512i* to = unit == 0 ? chunk.low : chunk.high;
  for (int64_t group = 0; group < groups; ++group, at += kLayout.bytes()) {
    scales.load(at, 0);
    for (int i = 0; i < kLayout.parts(); ++i) {
      chunk.scale[unit][group * kLayout.parts() + i] = scales.scale[i];
      chunk.scaled_zero[unit][group * kLayout.parts() + i] =
          kLayout.has_minima ? scales.minimum[kLayout.has_minima ? i : 0] : VecF{};
    }
    for (int block = 0; block < kKBlocks; ++block, to += 16) {
      const KBlock<kEncoding> codes(k_lines(kLayout, at, block, 0));
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        to[2 * v] = (__m512i)decode.at(codes.quad(v), 0);
        to[2 * v + 1] = (__m512i)decode.at(codes.quad(v), 1);
      }
    }
  }
}

template <Encoding kEncoding>
void many_k_rows(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  // Minima come off as zeros do.
  constexpr Encoding kAs = kLayout.has_minima ? Encoding::kInt4 : Encoding::kInt8;
  alignas(64) CodeChunk chunk;
  const int64_t padded = call.format.padded_columns(call.k);
  const int64_t tiles = tile_count(call.m, kTile);
  for (int64_t row = row_begin; row < row_end; row += 2 * kLanes) {
    const int64_t rows = least(call.n - row, 2 * kLanes), first = least(rows, kLanes);
    const std::byte* const low = unit_panel(call, row);
    for (int64_t begin = 0, count = 0; begin < padded; begin += count) {
      count = least(padded - begin, kChunkColumns);
      chunk.groups = count / kLayout.part_columns;
      chunk.pairs = kLayout.part_columns / 2;
      const std::byte* const at = low + begin / kKColumns * kLayout.bytes();
      decode_k_chunk<kEncoding>(at, count / kKColumns, 0, chunk);
      decode_k_chunk<kEncoding>(rows > kLanes ? at + call.panel_bytes : at, count / kKColumns, 1,
                                chunk);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at_row = tile_begin(call.m, kTile, tile);
        const auto* x =
            reinterpret_cast<const __m512i*>(call.tiles + tile * pair_tile_bytes(padded)) +
            begin / 2;
        codes_tile_of<kAs>(
            tile_begin(call.m, kTile, tile + 1) - at_row, x, chunk,
            {call.sums + at_row * call.sum_groups + begin / kLayout.part_columns, call.sum_groups},
            {{low, low}, 1, 0, 0},
            {call.y + at_row * call.ldy + row, call.ldy, call.bias ? call.bias + row : nullptr,
             begin > 0, static_cast<__mmask16>((1u << first) - 1),
             static_cast<__mmask16>((1u << (rows - first)) - 1)});
      }
    }
  }
}

void quantised_panels_bf16(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  switch (call.format.encoding) {
    case Encoding::kInt4: return many_rows<Encoding::kInt4>(call, row_begin, row_end);
    case Encoding::kInt8: return many_rows<Encoding::kInt8>(call, row_begin, row_end);
    case Encoding::kNf4: return many_rows<Encoding::kNf4>(call, row_begin, row_end);
    case Encoding::kMxfp4: return many_rows<Encoding::kMxfp4>(call, row_begin, row_end);
    case Encoding::kQ2K: return many_k_rows<Encoding::kQ2K>(call, row_begin, row_end);
    case Encoding::kQ3K: return many_k_rows<Encoding::kQ3K>(call, row_begin, row_end);
    case Encoding::kQ4K: return many_k_rows<Encoding::kQ4K>(call, row_begin, row_end);
    case Encoding::kQ5K: return many_k_rows<Encoding::kQ5K>(call, row_begin, row_end);
    case Encoding::kQ6K: return many_k_rows<Encoding::kQ6K>(call, row_begin, row_end);
    default: return many_rows<Encoding::kFp8>(call, row_begin, row_end);
  }
}

}  // namespace
}  // namespace sluice::kernels
