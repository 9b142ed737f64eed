#pragma once
// What kernels with a block (or several) for each row share. Only .cu files include it.
#include "kernels/cuda/quantise_row.h"
#include "kernels/cuda/row_copies.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

constexpr int kMostRowThreads = 1024;
constexpr int64_t kRowScratchBytes = kMostRowThreads / kWarp * static_cast<int64_t>(sizeof(float));

/// Threads of a block that has a row: four columns each, where they are enough.
inline int row_threads(int64_t cols) {
  const int64_t wanted = (cols + 4 * kWarp - 1) / (4 * kWarp) * kWarp;
  return static_cast<int>(wanted < kWarp             ? kWarp
                          : wanted > kMostRowThreads ? kMostRowThreads
                                                     : wanted);
}

SLUICE_DEVICE void keep_rounded(const Rows16& copy, int64_t row, int64_t col, float value) {
  if (!copy.data) return;
  copy.data[row * copy.stride + col] =
      copy.type == DType::kBF16 ? float_to_bf16(value) : float_to_half(value);
}

SLUICE_DEVICE void clear_padding(const Rows16& copy, int64_t row, int64_t cols) {
  if (!copy.data) return;
  for (int64_t col = cols + thread_index(); col < copy.stride; col += block_threads())
    copy.data[row * copy.stride + col] = 0;
}

}  // namespace sluice::cuda
