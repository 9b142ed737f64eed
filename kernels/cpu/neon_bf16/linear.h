#pragma once
// Linear layers on bf16 weights and bf16 x: few rows of x by BFDOT on w as it lies, many by BFMMLA,
// which multiplies twice as much, on pairs of rows.
#include "kernels/cpu/isa/neon_bf16.h"
#include "kernels/cpu/generic/linear.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

// R rows of w against M rows of x: R * M sums in registers.
template <int R, int M>
inline void dot_rows_bf16(const uint16_t* w, int64_t k, const uint16_t* x, int64_t ld,
                          float (&out)[R][M]) {
  float32x4_t sums[R][M];
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) sums[r][m] = vdupq_n_f32(0);
  const auto step = [&](const auto& load_at) __attribute__((always_inline)) {
    bfloat16x8_t weights[R];
    for (int r = 0; r < R; ++r) weights[r] = load_at(w + r * k);
    for (int m = 0; m < M; ++m) {
      const bfloat16x8_t v = load_at(x + m * ld);
      for (int r = 0; r < R; ++r) sums[r][m] = vbfdotq_f32(sums[r][m], weights[r], v);
    }
  };
  const int64_t whole = k / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8)
    step([&](const uint16_t* row) { return load_eight(row + i); });
  if (whole < k) step([&](const uint16_t* row) { return load_some(row + whole, k - whole); });
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) out[r][m] = vaddvq_f32(sums[r][m]);
}

template <int M>
void rows_bf16_by(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                  const uint16_t* x, int64_t ld, const float* bias, float* y, int64_t ldy) {
  constexpr int kRows = 4;
  const auto put = [&](int64_t row, int m, float value) {
    y[m * ldy + row] = value + (bias ? bias[row] : 0.0f);
  };
  int64_t row = row_begin;
  for (; row + kRows <= row_end; row += kRows) {
    float out[kRows][M];
    dot_rows_bf16<kRows, M>(w + row * k, k, x, ld, out);
    for (int r = 0; r < kRows; ++r)
      for (int m = 0; m < M; ++m) put(row + r, m, out[r][m]);
  }
  for (; row < row_end; ++row) {
    float out[1][M];
    dot_rows_bf16<1, M>(w + row * k, k, x, ld, out);
    for (int m = 0; m < M; ++m) put(row, m, out[0][m]);
  }
}

// One row of x: W is read as one stream, in the order it lies in.
inline void row_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                     const uint16_t* x, const float* bias, float* y) {
  constexpr int kSums = 8;
  constexpr int64_t kStep = kSums * 8;
  const int64_t whole = k / kStep * kStep, eights = k / 8 * 8;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint16_t* from = w + row * k;
    float32x4_t sums[kSums];
    for (int j = 0; j < kSums; ++j) sums[j] = vdupq_n_f32(0);
    int64_t i = 0;
    for (; i < whole; i += kStep) {
      for (int64_t line = 0; line < kStep * 2; line += 64)
        fetch_line_at(reinterpret_cast<const char*>(from + i) + line + kStreamAhead, false);
      for (int j = 0; j < kSums; ++j)
        sums[j] = vbfdotq_f32(sums[j], load_eight(from + i + j * 8), load_eight(x + i + j * 8));
    }
    for (; i < eights; i += 8)
      sums[0] = vbfdotq_f32(sums[0], load_eight(from + i), load_eight(x + i));
    if (i < k) sums[1] = vbfdotq_f32(sums[1], load_some(from + i, k - i), load_some(x + i, k - i));
    for (int width = kSums / 2; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
    y[row] = vaddvq_f32(sums[0]) + (bias ? bias[row] : 0.0f);
  }
}

void linear_rows_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                      const uint16_t* x, int64_t ld, int64_t m, const float* bias, float* y,
                      int64_t ldy, SumOrder) {
  static_assert(kBf16DotRows == 5);
  const auto run = [&](auto size) {
    rows_bf16_by<decltype(size)::kValue>(w, row_begin, row_end, k, x, ld, bias, y, ldy);
  };
  if (m == 1)
    row_bf16(w, row_begin, row_end, k, x, bias, y);
  else if (m == 2)
    run(Count<2>{});
  else if (m == 3)
    run(Count<3>{});
  else if (m == 4)
    run(Count<4>{});
  else
    run(Count<5>{});
}

// Many rows of x, in tiles of up to kTile of them: kBf16Slab columns of kPanel rows of w are laid
// out for BFMMLA, four columns of a pair of rows a vector, and multiplied in registers. Bound by
// multiply-adds.
constexpr int64_t kBf16Slab = 1024;
constexpr int kXPairs = kTileRoom / 2;  // vectors of x for every four columns
constexpr int kWPairs = kPanel / 2;     // and of w
static_assert(kTile % 2 == 0 && kPanel == 8);

struct Slab {
  bfloat16x8_t of[kBf16Slab / 4][kWPairs];
};

// Columns [begin, begin + count) of `rows` rows: to[quad * stride + pair], zeros past columns and
// rows, up to `pairs`.
inline void pair_rows(const uint16_t* from, int64_t rows, int64_t ld, int64_t begin, int64_t count,
                      bfloat16x8_t* to, int64_t stride, int64_t pairs) {
  const bfloat16x8_t zeros = vreinterpretq_bf16_u8(vdupq_n_u8(0));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const uint16_t* const first = from + 2 * pair * ld + begin;
    bfloat16x8_t* const at = to + pair;
    const auto put = [&](int64_t quad, const auto& load_at) {
      const bfloat16x8_t a = 2 * pair < rows ? load_at(first) : zeros;
      const bfloat16x8_t b = 2 * pair + 1 < rows ? load_at(first + ld) : zeros;
      at[quad * stride] = first_halves(a, b);
      if (quad + 1 < (count + 3) / 4) at[(quad + 1) * stride] = last_halves(a, b);
    };
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      put(i / 4, [&](const uint16_t* row) { return load_eight(row + i); });
    if (i < count) put(i / 4, [&](const uint16_t* row) { return load_some(row + i, count - i); });
  }
}

void arrange_pairs(const uint16_t* x, int64_t ld, int64_t m, int64_t k, int64_t tile,
                   std::byte* tiles) {
  const int64_t begin = tile_begin(m, kTile, tile), rows = tile_begin(m, kTile, tile + 1) - begin;
  auto* const to = reinterpret_cast<bfloat16x8_t*>(tiles + tile * bf16_tile_bytes(k, kTileRoom));
  pair_rows(x + begin * ld, rows, ld, 0, k, to, kXPairs, (rows + 1) / 2);
}

// The products of P pairs of rows of x with the rows of a slab. (Indices of arrays that are to be
// registers are constants only where loops over them are unrolled.)
template <int P>
struct PairSums {
  float32x4_t of[P][kWPairs];

  PairSums() {
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
      for (int q = 0; q < kWPairs; ++q) of[p][q] = vdupq_n_f32(0);
  }
  [[gnu::always_inline]] void add(const bfloat16x8_t* x, const bfloat16x8_t* w) {
#pragma GCC unroll 6
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
      for (int q = 0; q < kWPairs; ++q) of[p][q] = vbfmmlaq_f32(of[p][q], x[p], w[q]);
  }
  // Row `row` of pair `p` of x beside rows 0 to 3 or 4 to 7 of w.
  VecF row(int p, int row, int half) const {
    return row == 0 ? first_row(of[p][2 * half], of[p][2 * half + 1])
                    : second_row(of[p][2 * half], of[p][2 * half + 1]);
  }
};

template <int P>
void pairs_tile(const bfloat16x8_t* x, int64_t rows, const Slab& slab, int64_t quads,
                const NextRows& next, const PanelOutput& out) {
  PairSums<P> sums;
  for (int64_t begin = 0; begin < quads; begin += 8) {
    for (int64_t r = 0; r < next.count; ++r)
      __builtin_prefetch(next.w + r * next.row_bytes + begin * 8, 0, 2);
    const int64_t end = begin + 8 < quads ? begin + 8 : quads;
    for (int64_t quad = begin; quad < end; ++quad) sums.add(x + quad * kXPairs, slab.of[quad]);
  }
#pragma GCC unroll 6
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
    for (int row = 0; row < 2; ++row) {
      if (2 * p + row >= rows) break;
      float* const to = out.y + (2 * p + row) * out.ldy;
      float values[kPanel];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) store(values + half * kLanes, sums.row(p, row, half));
      const float* const before = out.adds ? to : out.bias;
      for (int64_t r = 0; r < out.rows; ++r) to[r] = before ? before[r] + values[r] : values[r];
    }
}

// pairs_tile of `rows` rows.
template <int P = kXPairs>
inline void pairs_tile_of(int64_t rows, const bfloat16x8_t* x, const Slab& slab, int64_t quads,
                          const NextRows& next, const PanelOutput& out) {
  if ((rows + 1) / 2 == P) return pairs_tile<P>(x, rows, slab, quads, next, out);
  if constexpr (P > 1) pairs_tile_of<P - 1>(rows, x, slab, quads, next, out);
}

void linear_panels_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                        const std::byte* x, int64_t m, const float* bias, float* y, int64_t ldy) {
  alignas(64) Slab slab;
  const int64_t tiles = tile_count(m, kTile);
  for (int64_t row = row_begin; row < row_end; row += kPanel) {
    const int64_t rows = row_end - row < kPanel ? row_end - row : kPanel;
    for (int64_t begin = 0; begin < k; begin += kBf16Slab) {
      const int64_t columns = k - begin < kBf16Slab ? k - begin : kBf16Slab;
      pair_rows(w + row * k, rows, k, begin, columns, slab.of[0], kWPairs, kWPairs);
      const bool ends_rows = begin + columns == k;
      const int64_t next_row = ends_rows ? row + kPanel : row;
      const int64_t next_rows = next_row >= row_end           ? 0
                                : row_end - next_row < kPanel ? row_end - next_row
                                                              : kPanel;
      const auto* next =
          reinterpret_cast<const char*>(w + next_row * k + (ends_rows ? 0 : begin + columns));
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(m, kTile, tile), fetched = next_rows * tile / tiles;
        const auto* tile_x =
            reinterpret_cast<const bfloat16x8_t*>(x + tile * bf16_tile_bytes(k, kTileRoom)) +
            begin / 4 * kXPairs;
        pairs_tile_of(tile_begin(m, kTile, tile + 1) - at, tile_x, slab, (columns + 3) / 4,
                      {next + fetched * k * 2, k * 2, next_rows * (tile + 1) / tiles - fetched, 32},
                      {y + at * ldy + row, ldy, rows, bias ? bias + row : nullptr, begin > 0});
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
