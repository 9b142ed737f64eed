#pragma once
// Linear layers on plain weights.
#include "kernels/cpu/generic/vector.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tiles.h"
#include "kernels/sum_order.h"

namespace sluice::kernels {
namespace {

template <int N>
struct Count {
  static constexpr int kValue = N;
};

// R rows of w against M rows of x: R * M sums in registers, each weight loaded once.
template <typename From, int R, int M>
inline void dot_block(const char* w, int64_t row_bytes, int64_t k, const float* x, int64_t ld,
                      float (&out)[R][M]) {
  VecF sums[R][M] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    VecF weights[R];
    for (int r = 0; r < R; ++r) weights[r] = From::vec(w + r * row_bytes + i * From::kBytes);
    for (int m = 0; m < M; ++m) {
      const VecF v = load(x + m * ld + i);
      for (int r = 0; r < R; ++r) sums[r][m] += weights[r] * v;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      float sum = sum_lanes(sums[r][m]);
      for (int64_t j = i; j < k; ++j)
        sum += From::one(w + r * row_bytes + j * From::kBytes) * x[m * ld + j];
      out[r][m] = sum;
    }
}

template <typename From, int R, int M>
void rows_by(const char* w, int64_t row_begin, int64_t row_end, int64_t k, const float* x,
             int64_t ld, const float* bias, float* y, int64_t ldy) {
  const int64_t row_bytes = k * From::kBytes;
  const auto put = [&](int64_t row, int m, float value) {
    y[m * ldy + row] = value + (bias ? bias[row] : 0.0f);
  };
  int64_t row = row_begin;
  for (; row + R <= row_end; row += R) {
    float out[R][M];
    dot_block<From, R, M>(w + row * row_bytes, row_bytes, k, x, ld, out);
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) put(row + r, m, out[r][m]);
  }
  for (; row < row_end; ++row) {
    float out[1][M];
    dot_block<From, 1, M>(w + row * row_bytes, row_bytes, k, x, ld, out);
    for (int m = 0; m < M; ++m) put(row, m, out[0][m]);
  }
}

// Bytes that a stream is fetched ahead of its use: a page, which the hardware does not look past.
constexpr int64_t kStreamAhead = 4096;

// One row of x: W is read as one stream, in the order it lies in. A single sum adds up as
// dot_block's do.
template <typename From, int kSums>
void stream_rows(const char* w, int64_t row_begin, int64_t row_end, int64_t k, const float* x,
                 const float* bias, float* y) {
  constexpr int64_t kStep = kSums * kLanes;
  const int64_t whole = k / kStep * kStep;
  const bool first_level = takes_many_misses();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const char* from = w + row * k * From::kBytes;
    VecF sums[kSums] = {};
    for (int64_t i = 0; i < whole; i += kStep) {
      for (int64_t at = 0; at < kStep * From::kBytes; at += 64)
        fetch_line_at(from + i * From::kBytes + at + kStreamAhead, first_level);
      for (int j = 0; j < kSums; ++j)
        sums[j] += From::vec(from + (i + j * kLanes) * From::kBytes) * load(x + i + j * kLanes);
    }
    for (int half = kSums / 2; half > 2; half /= 2)
      for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    if constexpr (kSums > 1) sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = sum_lanes(sums[0]);
    for (int64_t i = whole; i < k; ++i) sum += From::one(from + i * From::kBytes) * x[i];
    y[row] = sum + (bias ? bias[row] : 0.0f);
  }
}

template <typename From>
void rows_typed(const char* w, int64_t row_begin, int64_t row_end, int64_t k, const float* x,
                int64_t ld, int64_t m, const float* bias, float* y, int64_t ldy, SumOrder order) {
  if (m == 1 && order == SumOrder::kByRow)
    return stream_rows<From, 1>(w, row_begin, row_end, k, x, bias, y);
  if (m == 1)
    return stream_rows < From, kLanes < 8 ? 8 : 4 > (w, row_begin, row_end, k, x, bias, y);
  // Few rows of w at a time, so that they stay in the cache while x goes by in groups.
  constexpr int64_t kRows = 16;
  for (int64_t begin = row_begin; begin < row_end; begin += kRows) {
    const int64_t end = begin + kRows < row_end ? begin + kRows : row_end;
    int64_t done = 0;
    for (; done + 4 <= m; done += 4)
      rows_by<From, 4, 4>(w, begin, end, k, x + done * ld, ld, bias, y + done * ldy, ldy);
    if (done + 2 <= m) {
      rows_by<From, 4, 2>(w, begin, end, k, x + done * ld, ld, bias, y + done * ldy, ldy);
      done += 2;
    }
    if (done < m)
      rows_by<From, 4, 1>(w, begin, end, k, x + done * ld, ld, bias, y + done * ldy, ldy);
  }
}

void linear_rows(const void* w, DType dtype, int64_t row_begin, int64_t row_end, int64_t k,
                 const float* x, int64_t ld, int64_t m, const float* bias, float* y, int64_t ldy,
                 SumOrder order) {
  const char* p = static_cast<const char*>(w);
  if (dtype == DType::kF32)
    rows_typed<FromF32>(p, row_begin, row_end, k, x, ld, m, bias, y, ldy, order);
  else if (dtype == DType::kF16)
    rows_typed<FromF16>(p, row_begin, row_end, k, x, ld, m, bias, y, ldy, order);
  else
    rows_typed<FromBf16>(p, row_begin, row_end, k, x, ld, m, bias, y, ldy, order);
}

// Many rows of x, in tiles of up to kTile of them: kDepth columns of kPanel rows of w at a time are
// turned and widened into a panel, and multiplied in registers. Bound by multiply-adds.
constexpr int kPanel = 2 * kLanes;
constexpr int64_t kDepth = 256;
constexpr int kTile = kTileRows;
// Rows that a tile has room for: whole vectors of each column.
constexpr int kTileRoom = (kTile + kLanes - 1) / kLanes * kLanes;

// to[column * stride + row] of columns [begin, begin + count) of `rows` rows; what else there is of
// kLanes rows is of no use.
template <typename From>
void turn_columns(const char* from, int64_t rows, int64_t row_bytes, int64_t begin, int64_t count,
                  float* to, int64_t stride) {
  const char* address[kLanes];
  for (int64_t r = 0; r < kLanes; ++r)
    address[r] = from + (r < rows ? r : rows - 1) * row_bytes + begin * From::kBytes;
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes)
    turn<From>(address, d * From::kBytes, to + d * stride, stride);
  for (; d < count; ++d)
    for (int r = 0; r < kLanes; ++r) to[d * stride + r] = From::one(address[r] + d * From::kBytes);
}

void f32_arrange(const float* x, int64_t ld, int64_t m, int64_t k, int64_t tile, float* tiles) {
  const int64_t begin = tile_begin(m, kTile, tile), rows = tile_begin(m, kTile, tile + 1) - begin;
  for (int64_t first = 0; first < rows; first += kLanes)
    turn_columns<FromF32>((const char*)(x + (begin + first) * ld), rows - first, ld * 4, 0, k,
                          tiles + tile * k * kTileRoom + first, kTileRoom);
}

// The rows of w that are needed next: of each, lines beside those multiplied meanwhile are fetched.
struct NextRows {
  const char* w;
  int64_t row_bytes, count, columns_a_line;
};

struct PanelOutput {
  float* y;
  int64_t ldy, rows;  // rows of w: columns of y
  const float* bias;
  bool adds;
};

// y = y (or 0) + x panel, M rows of x: a tile as f32_arrange leaves it.
template <int M>
inline void panel_tile(const float* x, const float* panel, int64_t depth, const NextRows& next,
                       const PanelOutput& out) {
  VecF sums[M][2] = {};
  for (int64_t begin = 0; begin < depth; begin += next.columns_a_line) {
    for (int64_t r = 0; r < next.count; ++r)
      __builtin_prefetch(next.w + r * next.row_bytes + begin / next.columns_a_line * 64, 0, 2);
    const int64_t end = begin + next.columns_a_line < depth ? begin + next.columns_a_line : depth;
    for (int64_t d = begin; d < end; ++d) {
      const VecF low = load(panel + d * kPanel);
      const VecF high = load(panel + d * kPanel + kLanes);
      for (int m = 0; m < M; ++m) {
        const VecF v = splat(x[d * kTileRoom + m]);
        sums[m][0] += v * low;
        sums[m][1] += v * high;
      }
    }
  }
  if (out.rows == kPanel) {
    for (int m = 0; m < M; ++m)
      for (int half = 0; half < 2; ++half) {
        VecF value = sums[m][half];
        float* to = out.y + m * out.ldy + half * kLanes;
        if (out.adds)
          value += load(to);
        else if (out.bias)
          value += load(out.bias + half * kLanes);
        store(to, value);
      }
    return;
  }
  for (int m = 0; m < M; ++m)
    for (int64_t r = 0; r < out.rows; ++r) {
      const float value = sums[m][r / kLanes][r % kLanes];
      float& to = out.y[m * out.ldy + r];
      to = out.adds ? to + value : out.bias ? value + out.bias[r] : value;
    }
}

// panel_tile<count>.
template <int M = kTile>
inline void panel_tile_of(int64_t count, const float* x, const float* panel, int64_t depth,
                          const NextRows& next, const PanelOutput& out) {
  if (count == M) return panel_tile<M>(x, panel, depth, next, out);
  if constexpr (M > 1) panel_tile_of<M - 1>(count, x, panel, depth, next, out);
}

template <typename From>
void panels_typed(const char* w, int64_t row_begin, int64_t row_end, int64_t k, const float* x,
                  int64_t m, const float* bias, float* y, int64_t ldy) {
  alignas(64) float panel[kDepth * kPanel];
  const int64_t row_bytes = k * From::kBytes;
  const int64_t tiles = tile_count(m, kTile);
  for (int64_t row = row_begin; row < row_end; row += kPanel) {
    const int64_t rows = row_end - row < kPanel ? row_end - row : kPanel;
    for (int64_t begin = 0; begin < k; begin += kDepth) {
      const int64_t depth = k - begin < kDepth ? k - begin : kDepth;
      for (int64_t half = 0; half < kPanel; half += kLanes) {
        const int64_t from = half < rows ? half : 0;  // a half that w has no rows for is of no use
        turn_columns<From>(w + (row + from) * row_bytes, rows - from, row_bytes, begin, depth,
                           panel + half, kPanel);
      }
      const bool ends_rows = begin + depth == k;
      const int64_t next_row = ends_rows ? row + kPanel : row;
      const int64_t next_rows = next_row >= row_end           ? 0
                                : row_end - next_row < kPanel ? row_end - next_row
                                                              : kPanel;
      const char* next = w + next_row * row_bytes + (ends_rows ? 0 : begin + depth) * From::kBytes;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(m, kTile, tile), fetched = next_rows * tile / tiles;
        panel_tile_of(tile_begin(m, kTile, tile + 1) - at, x + (tile * k + begin) * kTileRoom,
                      panel, depth,
                      {next + fetched * row_bytes, row_bytes,
                       next_rows * (tile + 1) / tiles - fetched, 64 / From::kBytes},
                      {y + at * ldy + row, ldy, rows, bias ? bias + row : nullptr, begin > 0});
      }
    }
  }
}

void linear_panels(const void* w, DType dtype, int64_t row_begin, int64_t row_end, int64_t k,
                   const float* x, int64_t m, const float* bias, float* y, int64_t ldy) {
  const char* p = static_cast<const char*>(w);
  if (dtype == DType::kF32)
    panels_typed<FromF32>(p, row_begin, row_end, k, x, m, bias, y, ldy);
  else if (dtype == DType::kF16)
    panels_typed<FromF16>(p, row_begin, row_end, k, x, m, bias, y, ldy);
  else
    panels_typed<FromBf16>(p, row_begin, row_end, k, x, m, bias, y, ldy);
}

}  // namespace
}  // namespace sluice::kernels
