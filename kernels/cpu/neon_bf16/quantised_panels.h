#pragma once
// Products of many rows of bf16 x with quantised matrices: codes of kPanel rows of w are decoded
// once for all tiles of x, which are arranged as for plain bf16 products. Bound by multiply-adds.
#include "kernels/cpu/isa/neon_bf16.h"
#include "kernels/cpu/neon_bf16/linear.h"
#include "kernels/cpu/neon_bf16/quantised_linear.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kChunkColumns = kBf16Slab;  // decoded at a time
constexpr int64_t kChunkGroups = kChunkColumns / 16;
constexpr int kSlabUnits = kPanel / kLanes;

// A chunk of kPanel rows: `quads` of columns a group as BFMMLA takes them, and the groups' scales.
struct CodeChunk {
  Slab slab;
  int64_t groups, quads;
  VecF scale[kSlabUnits][kChunkGroups], scaled_zero[kSlabUnits][kChunkGroups];

  // Two pairs of columns of unit `unit`.
  void put(int64_t quad, int unit, VecU first, VecU second) {
    slab.of[quad][2 * unit] = (bfloat16x8_t)vzip1q_u32((uint32x4_t)first, (uint32x4_t)second);
    slab.of[quad][2 * unit + 1] = (bfloat16x8_t)vzip2q_u32((uint32x4_t)first, (uint32x4_t)second);
  }
};

// Sums of a tile's rows of x, from the chunk's first group on.
struct TileSums {
  const float* sums;
  int64_t groups;  // to the next row
};

template <Encoding kEncoding, int P>
void codes_tile(const bfloat16x8_t* x, int64_t rows, const CodeChunk& chunk, const TileSums& of_x,
                NextLines<1> next, const PanelOutput& out) {
  VecF totals[2 * P][kSlabUnits];
  for (int64_t m = 0; m < rows; ++m)
    for (int u = 0; u < kSlabUnits; ++u) {
      const float* const before = out.adds ? out.y + m * out.ldy : out.bias;
      totals[m][u] = before ? get_unit(before + u * kLanes, u * kLanes, out.rows) : VecF{};
    }
  const auto* w = chunk.slab.of;
  for (int64_t group = 0; group < chunk.groups; ++group) {
    PairSums<P> sums;
    for (int64_t begin = 0; begin < chunk.quads; begin += 8) {
      next.fetch();
      const int64_t end = least(chunk.quads, begin + 8);
      for (int64_t quad = begin; quad < end; ++quad, x += kXPairs, ++w) sums.add(x, *w);
    }
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
      for (int row = 0; row < 2; ++row) {
        const int m = 2 * p + row;
        if (m >= rows) break;
        const float sum = of_x.sums[m * of_x.groups + group];
#pragma GCC unroll 2
        for (int u = 0; u < kSlabUnits; ++u) {
          const UnitScales scales{chunk.scale[u][group], {}};
          totals[m][u] = add_group<Bf16Step, kEncoding>(totals[m][u], sums.row(p, row, u), scales,
                                                        chunk.scaled_zero[u][group], 1, sum);
        }
      }
  }
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t r = 0; r < out.rows; ++r)
      out.y[m * out.ldy + r] = totals[m][r / kLanes][r % kLanes];
}

// codes_tile of `rows` rows.
template <Encoding kEncoding, int P = kXPairs>
inline void codes_tile_of(int64_t rows, const bfloat16x8_t* x, const CodeChunk& chunk,
                          const TileSums& of_x, const NextLines<1>& next, const PanelOutput& out) {
  if ((rows + 1) / 2 == P) return codes_tile<kEncoding, P>(x, rows, chunk, of_x, next, out);
  if constexpr (P > 1) codes_tile_of<kEncoding, P - 1>(rows, x, chunk, of_x, next, out);
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
  // The groups of a chunk of up to `count` columns from `begin` on, and their quads.
  void cut(int64_t begin, int64_t count, CodeChunk& chunk) const {
    chunk.groups = columns <= count ? count / columns : 1;
    chunk.quads = least(columns - begin % columns, count) / 4;
  }
  // Part `part` of the panel is the chunk's unit `unit`.
  void decode(const std::byte* panel, int64_t begin, int part, int unit, CodeChunk& chunk) const {
    const Decoder<Bf16Step, kEncoding> decode;
    constexpr int kQuads = Decoder<Bf16Step, kEncoding>::kVectors / 2;
    const std::byte* lines = panel + begin / columns * group_bytes;
    const int64_t first_line = begin % columns / kColumns;
    int64_t quad = 0;
    for (int64_t g = 0; g < chunk.groups; ++g, lines += group_bytes) {
      const std::byte* line = lines + first_line * kQuantLine + part * kLanes * 4;
      for (int64_t i = 0; i < chunk.quads; i += kQuads, quad += kQuads, line += kQuantLine) {
        const VecU word = load_codes(line);
#pragma GCC unroll 2
        for (int v = 0; v < kQuads; ++v)
          chunk.put(quad + v, unit, decode.at(word, 2 * v), decode.at(word, 2 * v + 1));
      }
      const UnitScales scales = load_scales(kEncoding, lines + code_bytes, part);
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
    chunk.quads = kLayout.part_columns / 4;
  }
  void decode(const std::byte* panel, int64_t begin, int part, int unit, CodeChunk& chunk) const {
    const KBf16Step::Decoder<kEncoding> decode;
    KScales<kEncoding> scales;
    const std::byte* lines = panel + offset(begin);
    int64_t quad = 0;
    for (int64_t first = 0; first < chunk.groups;
         first += kLayout.parts(), lines += kLayout.bytes()) {
      scales.load(lines, part);
      for (int i = 0; i < kLayout.parts(); ++i) {
        chunk.scale[unit][first + i] = scales.scale[i];
        chunk.scaled_zero[unit][first + i] =
            kLayout.has_minima ? scales.minimum[kLayout.has_minima ? i : 0] : VecF{};
      }
      for (int block = 0; block < kLayout.blocks(); ++block) {
        const KBlock<kEncoding> codes(k_lines(kLayout, lines, block, part));
#pragma GCC unroll 8
        for (int v = 0; v < 8; ++v, ++quad) {
          const VecU four = codes.quad(v);
          chunk.put(quad, unit, decode.at(four, 0), decode.at(four, 1));
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
  for (int64_t row = row_begin; row < row_end; row += kPanel) {
    const std::byte* const panel = unit_panel(call, row);
    for (int64_t begin = 0, count = 0; begin < padded; begin += count) {
      codes.cut(begin, least(padded - begin, kChunkColumns), chunk);
      count = chunk.groups * chunk.quads * 4;
      for (int u = 0; u < kSlabUnits; ++u) codes.decode(panel, begin, part_of(row) + u, u, chunk);
      // The next chunk: of these rows, or the next ones' first. (The second half of a panel has
      // been fetched with the first.)
      const bool ends_rows = begin + count == padded;
      const int64_t next_row = ends_rows ? row + kPanel : row;
      const int64_t next_begin = ends_rows ? 0 : begin + count;
      const bool has_next = next_row < row_end && next_row % kPanelRows == 0;
      const int64_t next_bytes =
          has_next ? codes.offset(next_begin + least(padded - next_begin, kChunkColumns)) -
                         codes.offset(next_begin)
                   : 0;
      const std::byte* const next =
          unit_panel(call, has_next ? next_row : row) + codes.offset(next_begin);
      const int64_t steps = chunk.groups * ((chunk.quads + 7) / 8);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(call.m, kTile, tile);
        const auto* x = reinterpret_cast<const bfloat16x8_t*>(
                            call.tiles + tile * bf16_tile_bytes(padded, kTileRoom)) +
                        begin / 4 * kXPairs;
        codes_tile_of<Codes::kAs>(
            tile_begin(call.m, kTile, tile + 1) - at, x, chunk,
            {call.sums + at * call.sum_groups + begin / part, call.sum_groups},
            NextLines<1>({next}, next_bytes, tile, tiles, steps),
            {call.y + at * call.ldy + row, call.ldy, least(call.n - row, kPanel),
             call.bias ? call.bias + row : nullptr, begin > 0});
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
