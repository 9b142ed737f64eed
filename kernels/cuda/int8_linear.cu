#include <algorithm>

#include "kernels/cuda/int8_linear_block.h"

namespace sluice::cuda {

namespace {
constexpr int64_t kMostTokens = 64;  // of a block
constexpr int64_t kPanelRows = 16 * kPanelWarps;

int64_t blocks_of(int64_t all, int64_t each) { return (all + each - 1) / each; }

template <Encoding kEncoding, int kTiles, int kRun>
SLUICE_KERNEL_OF_BLOCKS(kLinearThreads, kBlocksEach)
int8_linear_kernel(Int8LinearArguments arguments) {
  using Block = Int8LinearBlock<kEncoding, kTiles, kRun>;
  state_budget<typename Block::Budget>();
  Block block(arguments);
  block.run();
}

template <Encoding kEncoding, int kRun>
void run_linear_int8(const Int8LinearArguments& arguments, int splits, Stream stream) {
  const auto run = [&](auto kernel, int64_t tokens, int64_t shared_bytes) {
    // Blocks that share panels are neighbours: their codes come from memory once.
    launch("int8_linear", kernel,
           {static_cast<int>(blocks_of(arguments.m, tokens)),
            static_cast<int>(blocks_of(arguments.n, kPanelRows)), splits},
           kLinearThreads, shared_bytes, stream, arguments);
  };
  if (arguments.m <= 8)
    run(int8_linear_kernel<kEncoding, 1, kRun>, 8,
        Int8LinearBlock<kEncoding, 1, kRun>::Budget::kSharedBytes);
  else if (arguments.m <= 16)
    run(int8_linear_kernel<kEncoding, 2, kRun>, 16,
        Int8LinearBlock<kEncoding, 2, kRun>::Budget::kSharedBytes);
  else if (arguments.m <= 32)
    run(int8_linear_kernel<kEncoding, 4, kRun>, 32,
        Int8LinearBlock<kEncoding, 4, kRun>::Budget::kSharedBytes);
  else
    run(int8_linear_kernel<kEncoding, 8, kRun>, kMostTokens,
        Int8LinearBlock<kEncoding, 8, kRun>::Budget::kSharedBytes);
}

void run_linear_int8(const WeightFormat& format, const Int8LinearArguments& arguments, int splits,
                     Stream stream) {
  const PanelShape& panel = arguments.panel;
  if (format.encoding == Encoding::kInt8) {
    if (panel.columns == panel.group_columns && panel.columns % 64 == 0)
      return run_linear_int8<Encoding::kInt8, 0>(arguments, splits, stream);
    return run_linear_int8<Encoding::kInt8, 32>(arguments, splits, stream);
  }
  switch (panel.group_columns) {
    case 32: return run_linear_int8<Encoding::kInt4, 32>(arguments, splits, stream);
    case 64: return run_linear_int8<Encoding::kInt4, 64>(arguments, splits, stream);
    default: return run_linear_int8<Encoding::kInt4, 128>(arguments, splits, stream);
  }
}
}  // namespace

Int8LinearPlan plan_linear_int8(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                int multiprocessors) {
  const ColumnSplit split = split_columns(
      format.padded_columns(k),
      blocks_of(n, kPanelRows) * std::max<int64_t>(1, blocks_of(m, kMostTokens)), multiprocessors);
  Int8LinearPlan plan{split.splits, split.columns, 0};
  if (plan.splits > 1) plan.workspace_floats = plan.splits * m * n;
  return plan;
}

// Splits times the blocks that a split has are at most what split_columns() allows.
int64_t linear_int8_workspace_floats(int multiprocessors) noexcept {
  return kMostWaves * kBlocksEach * multiprocessors * kMostTokens * kPanelRows;
}

void linear_int8(const Int8Rows& x, int64_t m, int64_t k, const std::byte* w,
                 const WeightFormat& format, int64_t n, const float* bias, float* y, int64_t ldy,
                 const Int8LinearPlan& plan, float* workspace, Stream stream) {
  if (m == 0 || n == 0) return;
  Int8LinearArguments arguments;
  arguments.x = x;
  arguments.m = static_cast<int>(m);
  arguments.w = w;
  arguments.panel = panel_shape(format, k);
  arguments.n = n;
  arguments.split_columns = plan.split_columns;
  arguments.bias = bias;
  arguments.is_split = plan.splits > 1;
  arguments.y = arguments.is_split ? workspace : y;
  arguments.ldy = arguments.is_split ? n : ldy;
  run_linear_int8(format, arguments, plan.splits, stream);
  if (arguments.is_split) add_splits(workspace, plan.splits, m, n, bias, y, ldy, stream);
}

}  // namespace sluice::cuda
