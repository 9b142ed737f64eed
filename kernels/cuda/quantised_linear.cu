#include <algorithm>

#include "kernels/cuda/quantised_linear.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kReduceThreads = 256;
constexpr int64_t kBlocksEach = 3;  // blocks that fill a multiprocessor's memory pipeline

SLUICE_KERNEL(kReduceThreads)
add_splits_kernel(const float* workspace, int splits, int64_t n, const float* bias, float* y,
                  int64_t ldy) {
  const int64_t col = int64_t{block_x()} * kReduceThreads + thread_index();
  const int64_t row = block_y();
  if (col >= n) return;
  // grid y is m.
  const int64_t m = grid_y();
  float sum = bias ? bias[col] : 0.0f;
  for (int split = 0; split < splits; ++split) sum += workspace[(split * m + row) * n + col];
  y[row * ldy + col] = sum;
}

PanelShape shape_of(const WeightFormat& format, int64_t k) {
  return {format.panel_bytes(k), format.panel_bytes(k) / format.groups(k), format.group_columns(k),
          format.padded_columns(k)};
}
}  // namespace

LinearPlan plan_linear_quantised(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                 int multiprocessors) {
  const int64_t columns = format.padded_columns(k);
  const int64_t blocks = (n + 16 * kPanelWarps - 1) / (16 * kPanelWarps);
  const int64_t wanted = std::max<int64_t>(1, kBlocksEach * multiprocessors / blocks);
  LinearPlan plan;
  const int64_t each = (columns + wanted - 1) / wanted;
  // Fewer columns than this are not worth a pass over the sums.
  constexpr int64_t kLeastColumns = 4 * kChunkColumns;
  plan.split_columns =
      (std::max(each, kLeastColumns) + kChunkColumns - 1) / kChunkColumns * kChunkColumns;
  plan.splits = static_cast<int>((columns + plan.split_columns - 1) / plan.split_columns);
  if (plan.splits > 1) plan.workspace_floats = plan.splits * m * n;
  return plan;
}

void linear_quantised(const Rows16& x, int64_t m, int64_t k, const std::byte* w,
                      const WeightFormat& format, int64_t n, const float* bias, float* y,
                      int64_t ldy, const LinearPlan& plan, float* workspace, Stream stream) {
  if (m == 0 || n == 0) return;
  LinearArguments arguments;
  arguments.x = x;
  arguments.m = static_cast<int>(m);
  arguments.w = w;
  arguments.panel = shape_of(format, k);
  arguments.n = n;
  arguments.split_columns = plan.split_columns;
  arguments.bias = bias;
  arguments.is_split = plan.splits > 1;
  arguments.y = arguments.is_split ? workspace : y;
  arguments.ldy = arguments.is_split ? n : ldy;
  const Grid grid{static_cast<int>((n + 16 * kPanelWarps - 1) / (16 * kPanelWarps)), plan.splits};
  switch (format.encoding) {
    case Encoding::kInt4: run_linear<Encoding::kInt4>(arguments, grid, stream); break;
    case Encoding::kInt8: run_linear<Encoding::kInt8>(arguments, grid, stream); break;
    case Encoding::kNf4: run_linear<Encoding::kNf4>(arguments, grid, stream); break;
    case Encoding::kFp8: run_linear<Encoding::kFp8>(arguments, grid, stream); break;
    case Encoding::kPlain: return;
  }
  if (arguments.is_split)
    launch("add_splits", add_splits_kernel,
           {static_cast<int>((n + kReduceThreads - 1) / kReduceThreads), static_cast<int>(m)},
           kReduceThreads, 0, stream, static_cast<const float*>(workspace), plan.splits, n, bias, y,
           ldy);
}

void dequantise(const std::byte* w, const WeightFormat& format, int64_t n, int64_t k, DType type,
                uint16_t* out, int64_t ld, Stream stream) {
  if (n == 0 || k == 0) return;
  const PanelShape shape = shape_of(format, k);
  switch (format.encoding) {
    case Encoding::kInt4:
      return run_dequantise<Encoding::kInt4>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kInt8:
      return run_dequantise<Encoding::kInt8>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kNf4:
      return run_dequantise<Encoding::kNf4>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kFp8:
      return run_dequantise<Encoding::kFp8>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kPlain: return;
  }
}

}  // namespace sluice::cuda
