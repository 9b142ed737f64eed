#pragma once
// Products of many rows of int8 x with panels of GGUF's K types: the codes and scales of some
// columns are decoded once for all rows of x, and lie in the first cache while these pass by. The
// sums are those of k_linear.h, to the bit.
#include "kernels/cpu/generic/k_linear.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kKChunkColumns = 1024;
constexpr int64_t kKChunkParts = kKChunkColumns / 16;
// From so many rows of x on; for fewer, half a chunk stays in the first cache beside them.
constexpr int64_t kKLargeChunkRows = 64;
// From so many rows of x on codes are better decoded once than in registers.
constexpr int64_t kManyKRows = 2 * kMostKRows + 1;

// Units of w and rows of x at a time: their sums, of a part and of a group, fill the registers.
constexpr int kKUnits = 2;
constexpr int kKTileRows = kVectorRegisters >= 32 ? 6 : 3;
constexpr int kKPanels = kKUnits > kPanelParts ? kKUnits / kPanelParts : 1;

// Columns of kKUnits units: quads of codes, a byte each, and the scales of parts.
struct KChunk {
  VecU codes[kKChunkColumns / 4][kKUnits];
  VecF scale[kKChunkParts][kKUnits], minimum[kKChunkParts][kKUnits];
  int64_t begin, groups;  // the first of them, and how many
};

template <Encoding kEncoding>
void decode_k(const std::byte* lines, int part, int unit, KChunk& chunk) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  for (int64_t group = 0; group < chunk.groups; ++group, lines += kLayout.bytes()) {
    KScales<kEncoding> scales;
    scales.load(lines, part);
    for (int i = 0; i < kLayout.parts(); ++i) {
      chunk.scale[group * kLayout.parts() + i][unit] = scales.scale[i];
      if constexpr (kLayout.has_minima)
        chunk.minimum[group * kLayout.parts() + i][unit] = scales.minimum[i];
    }
    auto* to = chunk.codes + group * (kLayout.columns / 4);
    for (int block = 0; block < kLayout.blocks(); ++block, to += 8) {
      const KBlock<kEncoding> codes(k_lines(kLayout, lines, block, part));
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) to[v][unit] = k_code_value<kEncoding>(codes.quad(v));
    }
  }
}

// M rows of x from `first` on and kKUnits units of w from `row` on: what the chunk adds to them.
template <Encoding kEncoding, int M>
void k_tile(const QuantisedCall& call, const KChunk& chunk, int64_t row, int64_t first,
            NextLines<kKPanels> next) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  constexpr int kQuads = kLayout.part_columns / 4;
  const int8_t* x = call.int8 + first * call.ld + chunk.begin;
  const float* const x_sums = call.sums + first * call.sum_groups;
  VecF totals[M][kKUnits];
  for (int m = 0; m < M; ++m)
    for (int u = 0; u < kKUnits; ++u) {
      const int64_t at = row + u * kLanes;
      totals[m][u] = chunk.begin > 0 ? get_unit(call.y + (first + m) * call.ldy + at, at, call.n)
                     : call.bias     ? get_unit(call.bias + at, at, call.n)
                                     : VecF{};
    }
  const auto* codes = chunk.codes;
  int64_t index = chunk.begin / kLayout.part_columns;  // of x's parts
  int64_t of_chunk = 0;
  for (int64_t group = 0; group < chunk.groups; ++group) {
    VecF sums_of_group[M][kKUnits] = {};
    for (int part = 0; part < kLayout.parts();
         ++part, ++index, ++of_chunk, codes += kQuads, x += kLayout.part_columns) {
      if (kQuads == 8 || part % 2 == 0) next.fetch();
      VecI sums[M][kKUnits] = {};
      if constexpr (!kLayout.has_minima)
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
          for (int u = 0; u < kKUnits; ++u)
            sums[m][u] = VecI{} + load_word(x_sums + m * call.sum_groups + index);
#pragma GCC unroll 4
      for (int v = 0; v < kQuads; v += 2) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
          for (int u = 0; u < kKUnits; ++u) {
            const VecU a[1] = {codes[v][u]}, b[1] = {codes[v + 1][u]};
            sums[m][u] =
                KInt8Step::add<kLayout.is_wide()>(sums[m][u], a, b, x + m * call.ld + 4 * v);
          }
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int u = 0; u < kKUnits; ++u) {
          sums_of_group[m][u] += KInt8Step::total(sums[m][u]) * chunk.scale[of_chunk][u];
          if constexpr (kLayout.has_minima)
            sums_of_group[m][u] -=
                chunk.minimum[of_chunk][u] * splat(x_sums[m * call.sum_groups + index]);
        }
    }
    const int64_t of_x = chunk.begin / kLayout.columns + group;
    for (int m = 0; m < M; ++m)
      for (int u = 0; u < kKUnits; ++u)
        totals[m][u] += sums_of_group[m][u] * splat(call.scales[(first + m) * call.groups + of_x]);
  }
  for (int m = 0; m < M; ++m)
    for (int u = 0; u < kKUnits; ++u) put_unit(call, row + u * kLanes, first + m, totals[m][u]);
}

template <Encoding kEncoding, int M = kKTileRows>
void k_tile_of(int64_t count, const QuantisedCall& call, const KChunk& chunk, int64_t row,
               int64_t first, const NextLines<kKPanels>& next) {
  if (count == M) return k_tile<kEncoding, M>(call, chunk, row, first, next);
  if constexpr (M > 1) k_tile_of<kEncoding, M - 1>(count, call, chunk, row, first, next);
}

template <Encoding kEncoding>
void many_k(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  constexpr int64_t kRows = kKUnits * kLanes;
  alignas(64) KChunk chunk;
  const int64_t groups = call.groups, tiles = tile_count(call.m, kKTileRows);
  const int64_t chunk_columns = call.m < kKLargeChunkRows ? kKChunkColumns / 2 : kKChunkColumns;
  const int64_t chunk_groups = chunk_columns / kLayout.columns;
  for (int64_t row = row_begin; row < row_end; row += kRows) {
    for (int64_t begin = 0, end = 0; begin < groups; begin = end) {
      chunk.begin = begin * kLayout.columns;
      chunk.groups = least(groups - begin, chunk_groups);
      end = begin + chunk.groups;
      for (int u = 0; u < kKUnits; ++u) {
        // A unit without rows is of no use.
        const int64_t from = row + u * kLanes < row_end ? row + u * kLanes : row;
        decode_k<kEncoding>(unit_panel(call, from) + begin * kLayout.bytes(), part_of(from), u,
                            chunk);
      }
      // The next chunk: of these rows, or the next ones' first. (The second half of a panel has
      // been fetched with the first.)
      const bool ends_rows = end == groups;
      const int64_t next_row = ends_rows ? row + kRows : row, next_begin = ends_rows ? 0 : end;
      const bool has_next = next_row < row_end && next_row % kPanelRows == 0;
      const int64_t bytes =
          has_next ? least(groups - next_begin, chunk_groups) * kLayout.bytes() : 0;
      const std::byte* next[kKPanels];
      for (int panel = 0; panel < kKPanels; ++panel)
        next[panel] = unit_panel(call, least(next_row + panel * kPanelRows, row_end - 1)) +
                      next_begin * kLayout.bytes();
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile_begin(call.m, kKTileRows, tile);
        k_tile_of<kEncoding>(tile_begin(call.m, kKTileRows, tile + 1) - first, call, chunk, row,
                             first, {next, bytes, tile, tiles, chunk.groups * kLayout.blocks()});
      }
    }
  }
}

void quantised_k_int8(const QuantisedCall& call, int64_t row_begin, int64_t row_end) {
  if (call.m < kManyKRows) return quantised_k<KInt8Step>(call, row_begin, row_end);
  switch (call.format.encoding) {
    case Encoding::kQ2K: return many_k<Encoding::kQ2K>(call, row_begin, row_end);
    case Encoding::kQ3K: return many_k<Encoding::kQ3K>(call, row_begin, row_end);
    case Encoding::kQ4K: return many_k<Encoding::kQ4K>(call, row_begin, row_end);
    case Encoding::kQ5K: return many_k<Encoding::kQ5K>(call, row_begin, row_end);
    case Encoding::kQ4_1: return many_k<Encoding::kQ4_1>(call, row_begin, row_end);
    case Encoding::kQ5_1: return many_k<Encoding::kQ5_1>(call, row_begin, row_end);
    case Encoding::kIq1: return many_k<Encoding::kIq1>(call, row_begin, row_end);
    case Encoding::kIq2: return many_k<Encoding::kIq2>(call, row_begin, row_end);
    default: return many_k<Encoding::kQ6K>(call, row_begin, row_end);
  }
}

}  // namespace
}  // namespace sluice::kernels
