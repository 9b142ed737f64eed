#pragma once
// Linear layers on bf16 weights and bf16 x, by AVX512-BF16's dot products.
#include "kernels/cpu/isa/avx512_bf16.h"
#include "kernels/cpu/generic/linear.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

// Columns that rows of W are fetched ahead of their use: 1 KiB of each of four rows covers the
// memory's latency.
constexpr int64_t kAhead = 512;

// out[i] = the sum of v[i]'s lanes, sixteen at a time: in the same order whatever N is. out has
// room for whole sixteens.
template <int N>
inline void sum_all(const __m512* v, float* out) {
  for (int i = 0; i < N; i += 16) {
    VecF sixteen[16];
    for (int j = 0; j < 16; ++j) sixteen[j] = i + j < N ? (VecF)v[i + j] : VecF{};
    store(out + i, sum_each(sixteen));
  }
}

template <int R, int M>
void rows_bf16_by(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                  const uint16_t* x, int64_t ld, const float* bias, float* y, int64_t ldy) {
  for (int64_t row = row_begin; row < row_end; row += R) {
    const int rows = row_end - row < R ? static_cast<int>(row_end - row) : R;
    const uint16_t* first = w + row * k;
    __m512 sums[R][M];
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) sums[r][m] = _mm512_setzero_ps();
    const int64_t whole = k / 32 * 32;
    if (rows == R) {
      // `ahead` columns before they are needed W is on its way to L2; the last of a row fetch for
      // the next R rows, if those belong to this share.
      const auto columns = [&](int64_t begin, int64_t end, int64_t ahead) {
        for (int64_t i = begin; i < end; i += 32) {
          __m512bh weights[R];
          for (int r = 0; r < R; ++r) weights[r] = load_bh(first + r * k + i);
          for (int r = 0; r < R; ++r) _mm_prefetch(first + r * k + i + ahead, _MM_HINT_T1);
          for (int m = 0; m < M; ++m) {
            const __m512bh v = load_bh(x + m * ld + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
              sums[r][m] = M > 4 ? add_bf16_products(sums[r][m], weights[r], v)
                                 : _mm512_dpbf16_ps(sums[r][m], weights[r], v);
          }
        }
      };
      const int64_t ahead = whole < kAhead ? whole : kAhead;
      columns(0, whole - ahead, ahead);
      columns(whole - ahead, whole, row + 2 * R <= row_end ? ahead - whole + R * k : 0);
    } else {
      for (int r = 0; r < rows; ++r)
        for (int64_t i = 0; i < whole; i += 32)
          for (int m = 0; m < M; ++m)
            sums[r][m] =
                _mm512_dpbf16_ps(sums[r][m], load_bh(first + r * k + i), load_bh(x + m * ld + i));
    }
    const auto tail = static_cast<__mmask32>((uint64_t{1} << (k - whole)) - 1);
    if (tail)
      for (int r = 0; r < rows; ++r)
        for (int m = 0; m < M; ++m)
          sums[r][m] = _mm512_dpbf16_ps(
              sums[r][m], (__m512bh)_mm512_maskz_loadu_epi16(tail, first + r * k + whole),
              (__m512bh)_mm512_maskz_loadu_epi16(tail, x + m * ld + whole));
    float totals[(R * M + 15) / 16 * 16];
    sum_all<R * M>(reinterpret_cast<const __m512*>(sums), totals);
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < M; ++m)
        y[m * ldy + row + r] = totals[r * M + m] + (bias ? bias[row + r] : 0.0f);
  }
}

// One row of x: W is read as one stream, in the order it lies in.
inline void row_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                     const uint16_t* x, const float* bias, float* y) {
  const int64_t whole = k / 128 * 128;
  const bool first_level = takes_many_misses();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint16_t* from = w + row * k;
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                      _mm512_setzero_ps()};
    int64_t i = 0;
    for (; i < whole; i += 128) {
      for (int j = 0; j < 4; ++j)
        fetch_line_at(reinterpret_cast<const char*>(from + i + j * 32) + kStreamAhead, first_level);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        sums[j] = _mm512_dpbf16_ps(sums[j], load_bh(from + i + j * 32), load_bh(x + i + j * 32));
    }
    for (; i < k; i += 32) {
      const auto mask =
          k - i < 32 ? static_cast<__mmask32>((uint64_t{1} << (k - i)) - 1) : ~__mmask32{0};
      sums[0] = _mm512_dpbf16_ps(sums[0], (__m512bh)_mm512_maskz_loadu_epi16(mask, from + i),
                                 (__m512bh)_mm512_maskz_loadu_epi16(mask, x + i));
    }
    const __m512 sum =
        _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    y[row] = _mm512_reduce_add_ps(sum) + (bias ? bias[row] : 0.0f);
  }
}

void linear_rows_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                      const uint16_t* x, int64_t ld, int64_t m, const float* bias, float* y,
                      int64_t ldy, SumOrder order) {
  const auto run = [&](auto size) {
    rows_bf16_by<4, decltype(size)::kValue>(w, row_begin, row_end, k, x, ld, bias, y, ldy);
  };
  if (m == 1 && order == SumOrder::kByRow)
    run(Count<1>{});
  else if (m == 1)
    row_bf16(w, row_begin, row_end, k, x, bias, y);
  else if (m == 2)
    run(Count<2>{});
  else if (m == 3)
    run(Count<3>{});
  else if (m == 4)
    run(Count<4>{});
  else
    run(Count<kBf16DotRows>{});
}

// Columns [begin, begin + count) of 16 rows, turned: slab[pair] holds that pair of columns of each
// row. Rows past `rows` and the partner of an odd last column are zero.
inline void turn_pairs(const uint16_t* w, int64_t rows, int64_t ld, int64_t begin, int64_t count,
                       __m512i* slab) {
  const uint16_t* const from = w + begin;
  int64_t i = 0;
  if (rows == 16)
    for (; i + 32 <= count; i += 32)
      transpose16(
          [&](int r, int pair) {
            const uint16_t* const at = from + r * ld + i + 2 * pair;
            return load_quarters(at, at + 4 * ld, at + 8 * ld, at + 12 * ld);
          },
          [&](int pair, __m512i both) { slab[i / 2 + pair] = both; });
  for (; i < count; i += 32) {
    const int64_t left = count - i < 32 ? count - i : 32;
    const auto mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    __m512i block[16];
    for (int64_t r = 0; r < 16; ++r)
      block[r] =
          r < rows ? _mm512_maskz_loadu_epi16(mask, from + r * ld + i) : _mm512_setzero_si512();
    transpose16(block);
    for (int64_t pair = 0; pair < (left + 1) / 2; ++pair) slab[i / 2 + pair] = block[pair];
  }
}

void arrange_pairs(const uint16_t* x, int64_t ld, int64_t m, int64_t k, int64_t tile,
                   std::byte* tiles) {
  const int64_t begin = tile_begin(m, kTile, tile);
  auto* const to = reinterpret_cast<__m512i*>(tiles + tile * bf16_tile_bytes(k, kTileRoom));
  turn_pairs(x + begin * ld, tile_begin(m, kTile, tile + 1) - begin, ld, 0, k, to);
}

// Many rows of x: kBf16Slab columns of 32 rows of w are turned into pairs of columns, and
// multiplied in register tiles of up to 12 rows of x. Bound by multiply-adds.
constexpr int64_t kBf16Slab = 1024;

struct Slab {
  __m512i low[kBf16Slab / 2], high[kBf16Slab / 2];  // rows 0 to 15 and 16 to 31 of w
  int64_t pairs;
};

// 32 columns of y's rows, as far as w has them.
struct TileOutput {
  float* y;
  int64_t ldy;
  const float* bias;
  bool adds;
  __mmask16 low, high;
};

inline __m512i splat_pair(const __m512i* x, int row) {
  return _mm512_set1_epi32(reinterpret_cast<const int32_t*>(x)[row]);
}

template <int M>
void pairs_tile(const __m512i* x, const Slab& slab, const NextRows& next, const TileOutput& out) {
  __m512 low[M], high[M];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
    low[m] = high[m] = _mm512_setzero_ps();
    __builtin_prefetch(out.y + m * out.ldy, 1);
    __builtin_prefetch(out.y + m * out.ldy + 16, 1);
  }
  for (int64_t begin = 0; begin < slab.pairs; begin += 16) {
    for (int64_t r = 0; r < next.count; ++r)
      _mm_prefetch(next.w + r * next.row_bytes + 4 * begin, _MM_HINT_T1);
    const int64_t end = begin + 16 < slab.pairs ? begin + 16 : slab.pairs;
    for (int64_t p = begin; p < end; ++p) {
      const auto a = (__m512bh)slab.low[p], b = (__m512bh)slab.high[p];
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const auto v = (__m512bh)splat_pair(x + p, m);
        low[m] = add_bf16_products(low[m], a, v);
        high[m] = add_bf16_products(high[m], b, v);
      }
    }
  }
  const auto put = [&](__m512 value, __mmask16 mask, int m, int column) {
    float* const to = out.y + m * out.ldy + column;
    if (out.adds)
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
    else if (out.bias)
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, out.bias + column));
    _mm512_mask_storeu_ps(to, mask, value);
  };
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
    put(low[m], out.low, m, 0);
    put(high[m], out.high, m, 16);
  }
}

// pairs_tile<count>.
template <int M = kTile>
inline void pairs_tile_of(int64_t count, const __m512i* x, const Slab& slab, const NextRows& next,
                          const TileOutput& out) {
  if (count == M) return pairs_tile<M>(x, slab, next, out);
  if constexpr (M > 1) pairs_tile_of<M - 1>(count, x, slab, next, out);
}

void linear_panels_bf16(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                        const std::byte* x, int64_t m, const float* bias, float* y, int64_t ldy) {
  alignas(64) Slab slab;
  const int64_t tiles = tile_count(m, kTile);
  for (int64_t row = row_begin; row < row_end; row += 32) {
    const int64_t rows = row_end - row < 32 ? row_end - row : 32;
    const int64_t first = rows < 16 ? rows : 16;
    const auto low = static_cast<__mmask16>((1u << first) - 1),
               high = static_cast<__mmask16>((1u << (rows - first)) - 1);
    for (int64_t begin = 0; begin < k; begin += kBf16Slab) {
      const int64_t columns = k - begin < kBf16Slab ? k - begin : kBf16Slab;
      turn_pairs(w + row * k, first, k, begin, columns, slab.low);
      turn_pairs(w + (row + first) * k, rows - first, k, begin, columns, slab.high);
      slab.pairs = (columns + 1) / 2;
      const bool ends_rows = begin + columns == k;
      const int64_t next_row = ends_rows ? row + 32 : row;
      const int64_t next_rows = next_row >= row_end       ? 0
                                : row_end - next_row < 32 ? row_end - next_row
                                                          : 32;
      const auto* next =
          reinterpret_cast<const char*>(w + next_row * k + (ends_rows ? 0 : begin + columns));
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t at = tile_begin(m, kTile, tile), fetched = next_rows * tile / tiles;
        const auto* tile_x =
            reinterpret_cast<const __m512i*>(x + tile * bf16_tile_bytes(k, kTileRoom)) + begin / 2;
        pairs_tile_of(tile_begin(m, kTile, tile + 1) - at, tile_x, slab,
                      {next + fetched * k * 2, k * 2, next_rows * (tile + 1) / tiles - fetched, 32},
                      {y + at * ldy + row, ldy, bias ? bias + row : nullptr, begin > 0, low, high});
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
