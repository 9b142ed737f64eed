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

// Rows of x of a block.
int64_t tokens_of(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : kMostTokens; }

template <Encoding kEncoding, int kTiles, int kRun>
void run_tiles(const Int8LinearArguments& arguments, Stream stream) {
  // Blocks that share panels are neighbours: their codes come from memory once.
  const Grid grid{static_cast<int>(blocks_of(arguments.m, 8 * kTiles)),
                  static_cast<int>(blocks_of(arguments.n, kPanelRows)), arguments.splits};
  launch("int8_linear", int8_linear_kernel<kEncoding, kTiles, kRun>, grid, kLinearThreads,
         Int8LinearBlock<kEncoding, kTiles, kRun>::Budget::kSharedBytes, stream, arguments);
}

template <Encoding kEncoding, int kRun>
void run_linear_int8(const Int8LinearArguments& arguments, Stream stream) {
  switch (tokens_of(arguments.m)) {
    case 8: return run_tiles<kEncoding, 1, kRun>(arguments, stream);
    case 16: return run_tiles<kEncoding, 2, kRun>(arguments, stream);
    case 32: return run_tiles<kEncoding, 4, kRun>(arguments, stream);
    default: return run_tiles<kEncoding, 8, kRun>(arguments, stream);
  }
}

void run_linear_int8(const WeightFormat& format, const Int8LinearArguments& arguments,
                     Stream stream) {
  const PanelShape& panel = arguments.panel;
  if (format.encoding == Encoding::kInt8) {
    if (panel.columns == panel.group_columns && panel.columns % 64 == 0)
      return run_linear_int8<Encoding::kInt8, 0>(arguments, stream);
    return run_linear_int8<Encoding::kInt8, 32>(arguments, stream);
  }
  switch (panel.group_columns) {
    case 32: return run_linear_int8<Encoding::kInt4, 32>(arguments, stream);
    case 64: return run_linear_int8<Encoding::kInt4, 64>(arguments, stream);
    default: return run_linear_int8<Encoding::kInt4, 128>(arguments, stream);
  }
}
}  // namespace

Int8LinearPlan plan_linear_int8(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                int multiprocessors) {
  const int64_t blocks = blocks_of(n, kPanelRows);
  const ColumnSplit split =
      split_columns(format.padded_columns(k),
                    blocks * std::max<int64_t>(1, blocks_of(m, kMostTokens)), multiprocessors);
  Int8LinearPlan plan{split.splits, split.columns, 0};
  const int64_t tokens = tokens_of(m);
  if (plan.splits > 1)
    plan.workspace_floats = plan.splits * blocks_of(m, tokens) * tokens * blocks * kPanelRows;
  return plan;
}

// Splits times the blocks that a split has are at most what split_columns() allows.
int64_t linear_int8_workspace_floats(int multiprocessors) noexcept {
  return kMostWaves * kBlocksEach * multiprocessors * kMostTokens * kPanelRows;
}

void linear_int8(const Int8Rows& x, int64_t m, int64_t k, const std::byte* w,
                 const WeightFormat& format, int64_t n, const float* bias, float* y, int64_t ldy,
                 const Int8LinearPlan& plan, const SplitSpace& space, Stream stream) {
  if (m == 0 || n == 0) return;
  Int8LinearArguments arguments;
  arguments.x = x;
  arguments.m = static_cast<int>(m);
  arguments.w = w;
  arguments.panel = panel_shape(format, k);
  arguments.n = n;
  arguments.split_columns = plan.split_columns;
  arguments.bias = bias;
  arguments.y = y;
  arguments.ldy = ldy;
  arguments.splits = plan.splits;
  arguments.split = space;
  run_linear_int8(format, arguments, stream);
}

}  // namespace sluice::cuda
