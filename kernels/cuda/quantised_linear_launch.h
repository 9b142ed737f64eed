#pragma once
// What products with quantised panels share, and what the sources of one format each
// (quantised_linear_int4.cu ...) offer to quantised_linear.cu, which does not compile their
// kernels.
#include "kernels/cuda/quantised_linear.h"
#include "kernels/cuda/split_space.h"

namespace sluice::cuda {

constexpr int kPanelWarps = 8;
constexpr int kLinearThreads = kPanelWarps * kWarp;
constexpr int kChunkColumns =
    128;  ///< what splits are multiples of; blocks have chunks of this or half

/// Blocks of these products that a multiprocessor holds: what their registers are held to.
constexpr int kBlocksEach = 2;

/// What the kernels need of a WeightFormat and its matrix.
struct PanelShape {
  int64_t panel_bytes = 0;
  int64_t group_bytes = 0;  ///< codes and scales
  int64_t group_columns = 0;
  int64_t columns = 0;  ///< with padding
  int group_shift = 0;  ///< log2 of group_columns; 31 where one group is the row
};

/// Of rows of k columns.
PanelShape panel_shape(const WeightFormat& format, int64_t k);

/// Columns shared out so that, times the `blocks` that have the same columns, the last blocks of a
/// GPU end together: at most kMostWaves of the blocks that `fit` it where there is more than one
/// split.
constexpr int64_t kMostWaves = 2;
struct ColumnSplit {
  int splits;
  int64_t columns;  ///< whole chunks; the last split has what is left
};
ColumnSplit split_columns(int64_t columns, int64_t blocks, int64_t fit);

/// What a launch is given.
struct LinearArguments {
  Rows16 x;
  int m = 0;
  const std::byte* w = nullptr;
  PanelShape panel;
  int64_t n = 0;
  int64_t split_columns = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
  int splits = 1;
  SplitSpace split;  ///< of more than one
};

/// Shared memory of a block of the kernel that takes m rows of x; instantiated, as what follows, in
/// the format's own source.
template <Encoding kEncoding>
int64_t linear_shared_bytes(const PanelShape& shape, int64_t m);
template <Encoding kEncoding>
void run_linear(const LinearArguments& arguments, Grid grid, Stream stream);
template <Encoding kEncoding>
void run_dequantise(const std::byte* w, const PanelShape& shape, int64_t n, int64_t k, DType type,
                    uint16_t* out, int64_t ld, Stream stream);

}  // namespace sluice::cuda
