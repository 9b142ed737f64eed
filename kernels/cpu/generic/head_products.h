#pragma once
// Sums of rows of plain weights, each times a factor: products with a transposed matrix that lies
// as it does.
#include "kernels/cpu/generic/vector.h"

namespace sluice::kernels {
namespace {

// Columns [d, d + V vectors) of M rows of y += x[m][i] w[i], each weight widened once.
template <typename From, int M, int V>
inline void add_rows_tile(const char* w, int64_t row_bytes, int64_t count, const float* x,
                          int64_t ld, float* y, int64_t ldy) {
  VecF sums[M][V];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) sums[m][v] = load(y + m * ldy + v * kLanes);
  for (int64_t i = 0; i < count; ++i, w += row_bytes) {
    VecF factors[M];
    for (int m = 0; m < M; ++m) factors[m] = splat(x[m * ld + i]);
    for (int v = 0; v < V; ++v) {
      const VecF weights = From::vec(w + v * kLanes * From::kBytes);
      for (int m = 0; m < M; ++m) sums[m][v] += factors[m] * weights;
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) store(y + m * ldy + v * kLanes, sums[m][v]);
}

// Of all columns.
template <typename From, int M>
inline void add_rows_by(const char* w, int64_t count, int64_t k, const float* x, int64_t ld,
                        float* y, int64_t ldy) {
  // Sums of a tile stay in registers: AVX-512 has twice as many.
  constexpr int kVectors = kLanes == 16 ? 4 : 2;
  const int64_t row_bytes = k * From::kBytes;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= k; d += kVectors * kLanes)
    add_rows_tile<From, M, kVectors>(w + d * From::kBytes, row_bytes, count, x, ld, y + d, ldy);
  for (; d + kLanes <= k; d += kLanes)
    add_rows_tile<From, M, 1>(w + d * From::kBytes, row_bytes, count, x, ld, y + d, ldy);
  for (; d < k; ++d)
    for (int m = 0; m < M; ++m) {
      float sum = y[m * ldy + d];
      for (int64_t i = 0; i < count; ++i)
        sum += x[m * ld + i] * From::one(w + i * row_bytes + d * From::kBytes);
      y[m * ldy + d] = sum;
    }
}

template <typename From>
void add_rows_typed(const char* w, int64_t count, int64_t k, const float* x, int64_t ld, int64_t m,
                    float* y, int64_t ldy) {
  int64_t done = 0;
  for (; done + 4 <= m; done += 4)
    add_rows_by<From, 4>(w, count, k, x + done * ld, ld, y + done * ldy, ldy);
  if (done + 2 <= m) {
    add_rows_by<From, 2>(w, count, k, x + done * ld, ld, y + done * ldy, ldy);
    done += 2;
  }
  if (done < m) add_rows_by<From, 1>(w, count, k, x + done * ld, ld, y + done * ldy, ldy);
}

void add_rows(const void* w, DType dtype, int64_t count, int64_t k, const float* x, int64_t ld,
              int64_t m, float* y, int64_t ldy) {
  const char* p = static_cast<const char*>(w);
  if (dtype == DType::kF32)
    add_rows_typed<FromF32>(p, count, k, x, ld, m, y, ldy);
  else if (dtype == DType::kF16)
    add_rows_typed<FromF16>(p, count, k, x, ld, m, y, ldy);
  else
    add_rows_typed<FromBf16>(p, count, k, x, ld, m, y, ldy);
}

}  // namespace
}  // namespace sluice::kernels
