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

// Calls visit(tiles, run) with the two as constants.
template <class Run, class Visit>
void with_tiles(int64_t m, Run run, const Visit& visit) {
  switch (tokens_of(m)) {
    case 8: return visit(Constant<1>(), run);
    case 16: return visit(Constant<2>(), run);
    case 32: return visit(Constant<4>(), run);
    default: return visit(Constant<8>(), run);
  }
}

// The kernel that takes m rows of x with panels of this encoding.
template <Encoding kEncoding, class Visit>
void with_kernel(const PanelShape& panel, int64_t m, const Visit& visit) {
  if constexpr (kEncoding == Encoding::kInt8) {
    if (panel.columns == panel.group_columns && panel.columns % 64 == 0)
      return with_tiles(m, Constant<0>(), visit);
    return with_tiles(m, Constant<32>(), visit);
  } else if constexpr (kEncoding == Encoding::kQ4_0) {
    return with_tiles(m, Constant<32>(), visit);
  } else {
    switch (panel.group_columns) {
      case 32: return with_tiles(m, Constant<32>(), visit);
      case 64: return with_tiles(m, Constant<64>(), visit);
      default: return with_tiles(m, Constant<128>(), visit);
    }
  }
}

template <Encoding kEncoding>
int64_t shared_bytes(const PanelShape& panel, int64_t m) {
  int64_t bytes = 0;
  with_kernel<kEncoding>(panel, m, [&](auto tiles, auto run) {
    bytes = Int8LinearBlock<kEncoding, tiles.value, run.value>::Budget::kSharedBytes;
  });
  return bytes;
}

template <Encoding kEncoding>
void run_linear_int8(const Int8LinearArguments& arguments, Stream stream) {
  with_kernel<kEncoding>(arguments.panel, arguments.m, [&](auto tiles, auto run) {
    // Blocks that share panels are neighbours: their codes come from memory once.
    const Grid grid{static_cast<int>(blocks_of(arguments.m, 8 * tiles.value)),
                    static_cast<int>(blocks_of(arguments.n, kPanelRows)), arguments.splits};
    launch("int8_linear", int8_linear_kernel<kEncoding, tiles.value, run.value>, grid,
           kLinearThreads, Int8LinearBlock<kEncoding, tiles.value, run.value>::Budget::kSharedBytes,
           stream, arguments);
  });
}
}  // namespace

int linear_int8_blocks(const WeightFormat& format, int64_t m, int64_t k,
                       const Multiprocessors& processors) {
  const PanelShape panel = panel_shape(format, k);
  const int64_t bytes = format.encoding == Encoding::kInt8 ? shared_bytes<Encoding::kInt8>(panel, m)
                        : format.encoding == Encoding::kQ4_0
                            ? shared_bytes<Encoding::kQ4_0>(panel, m)
                            : shared_bytes<Encoding::kInt4>(panel, m);
  return blocks_that_fit(processors, kBlocksEach, bytes);
}

Int8LinearPlan plan_linear_int8(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                const Multiprocessors& processors) {
  const int64_t blocks = blocks_of(n, kPanelRows);
  const int64_t fit = int64_t{linear_int8_blocks(format, m, k, processors)} * processors.count;
  const ColumnSplit split = split_columns(
      format.padded_columns(k), blocks * std::max<int64_t>(1, blocks_of(m, kMostTokens)), fit);
  Int8LinearPlan plan{split.splits, split.columns, 0};
  const int64_t tokens = tokens_of(m);
  if (plan.splits > 1)
    plan.workspace_floats = plan.splits * blocks_of(m, tokens) * tokens * blocks * kPanelRows;
  return plan;
}

// Splits times the blocks that a split has are at most what split_columns() allows.
int64_t linear_int8_workspace_floats(const Multiprocessors& processors) noexcept {
  return kMostWaves * kBlocksEach * processors.count * kMostTokens * kPanelRows;
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
  if (format.encoding == Encoding::kInt8)
    run_linear_int8<Encoding::kInt8>(arguments, stream);
  else if (format.encoding == Encoding::kQ4_0)
    run_linear_int8<Encoding::kQ4_0>(arguments, stream);
  else
    run_linear_int8<Encoding::kInt4>(arguments, stream);
}

}  // namespace sluice::cuda
