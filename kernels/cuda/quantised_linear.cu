#include <algorithm>
#include <bit>

#include "kernels/cuda/k_linear_launch.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"
#include "kernels/k_layout.h"

namespace sluice::cuda {

PanelShape panel_shape(const WeightFormat& format, int64_t k) {
  const int64_t columns = format.group_columns(k);
  const int shift = format.groups(k) == 1 ? 31 : std::countr_zero(static_cast<uint64_t>(columns));
  return {format.panel_bytes(k), format.panel_bytes(k) / format.groups(k), columns,
          format.padded_columns(k), shift};
}

// Blocks that fit the GPU run at once, in waves; each takes as long as its columns and what it
// takes to begin, in columns.
ColumnSplit split_columns(int64_t columns, int64_t blocks, int64_t fit) {
  constexpr int64_t kLeastColumns = 2 * kChunkColumns;  // fewer are not worth a pass over the sums
  constexpr int64_t kBeginColumns = 2 * kChunkColumns;  // 1 us of a block's share of 4.8 TB/s
  ColumnSplit best{1, (columns + kChunkColumns - 1) / kChunkColumns * kChunkColumns};
  int64_t least = (blocks + fit - 1) / fit * (best.columns + kBeginColumns);
  for (int64_t wanted = 2; wanted * blocks <= kMostWaves * fit; ++wanted) {
    const int64_t each = std::max((columns + wanted - 1) / wanted, kLeastColumns);
    ColumnSplit split;
    split.columns = (each + kChunkColumns - 1) / kChunkColumns * kChunkColumns;
    split.splits = static_cast<int>((columns + split.columns - 1) / split.columns);
    const int64_t waves = (split.splits * blocks + fit - 1) / fit;
    const int64_t cost = waves * (split.columns + kBeginColumns);
    if (cost < least) {
      least = cost;
      best = split;
    }
    if (each == kLeastColumns) break;
  }
  return best;
}

// Where columns are split, all blocks are at most kMostWaves of what fits, two or more a place.
int64_t split_counters(const Multiprocessors& processors) noexcept {
  return kMostWaves * kBlocksEach * processors.count / 2;
}

namespace {
// Calls visit(encoding) with a K type, or what is kept like one, as a constant.
template <class Visit>
void with_k_encoding(Encoding encoding, const Visit& visit) {
  switch (encoding) {
    case Encoding::kQ2K: return visit(Constant<Encoding::kQ2K>());
    case Encoding::kQ3K: return visit(Constant<Encoding::kQ3K>());
    case Encoding::kQ4K: return visit(Constant<Encoding::kQ4K>());
    case Encoding::kQ5K: return visit(Constant<Encoding::kQ5K>());
    case Encoding::kQ6K: return visit(Constant<Encoding::kQ6K>());
    case Encoding::kQ4_1: return visit(Constant<Encoding::kQ4_1>());
    case Encoding::kQ5_1: return visit(Constant<Encoding::kQ5_1>());
    case Encoding::kIq1: return visit(Constant<Encoding::kIq1>());
    case Encoding::kIq2: return visit(Constant<Encoding::kIq2>());
    default: return;
  }
}
}  // namespace

int linear_blocks(const WeightFormat& format, int64_t m, int64_t k,
                  const Multiprocessors& processors) {
  if (format.is_k()) return kBlocksEach;  // they have next to no shared memory
  const PanelShape shape = panel_shape(format, k);
  const auto fit = [&](int64_t bytes) { return blocks_that_fit(processors, kBlocksEach, bytes); };
  switch (format.encoding) {
    case Encoding::kInt4: return fit(linear_shared_bytes<Encoding::kInt4>(shape, m));
    case Encoding::kInt8: return fit(linear_shared_bytes<Encoding::kInt8>(shape, m));
    case Encoding::kNf4: return fit(linear_shared_bytes<Encoding::kNf4>(shape, m));
    case Encoding::kFp8: return fit(linear_shared_bytes<Encoding::kFp8>(shape, m));
    case Encoding::kMxfp4: return fit(linear_shared_bytes<Encoding::kMxfp4>(shape, m));
    case Encoding::kQ4_0: return fit(linear_shared_bytes<Encoding::kQ4_0>(shape, m));
    case Encoding::kIq4: return fit(linear_shared_bytes<Encoding::kIq4>(shape, m));
    default: return 1;
  }
}

LinearPlan plan_linear_quantised(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                 const Multiprocessors& processors) {
  const int64_t blocks = (n + 16 * kPanelWarps - 1) / (16 * kPanelWarps);
  const int64_t fit = int64_t{linear_blocks(format, m, k, processors)} * processors.count;
  ColumnSplit split = split_columns(format.padded_columns(k), blocks, fit);
  if (format.is_k()) {  // whole groups
    constexpr int64_t kGroup = kernels::kMostKColumns;
    split.columns = (split.columns + kGroup - 1) / kGroup * kGroup;
    split.splits = static_cast<int>((format.padded_columns(k) + split.columns - 1) / split.columns);
  }
  LinearPlan plan{split.splits, split.columns, 0};
  if (plan.splits > 1) plan.workspace_floats = plan.splits * m * blocks * 16 * kPanelWarps;
  return plan;
}

int64_t linear_workspace_floats(int64_t m, const Multiprocessors& processors) noexcept {
  return kMostWaves * kBlocksEach * processors.count * 16 * kPanelWarps * m;
}

void linear_quantised(const Rows16& x, int64_t m, int64_t k, const std::byte* w,
                      const WeightFormat& format, int64_t n, const float* bias, float* y,
                      int64_t ldy, const LinearPlan& plan, const SplitSpace& space, Stream stream) {
  if (m == 0 || n == 0) return;
  LinearArguments arguments;
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
  const Grid grid{static_cast<int>((n + 16 * kPanelWarps - 1) / (16 * kPanelWarps)), plan.splits};
  if (format.is_k())
    return with_k_encoding(format.encoding, [&](auto encoding) {
      run_k_linear<encoding.value>(arguments, grid, stream);
    });
  switch (format.encoding) {
    case Encoding::kInt4: run_linear<Encoding::kInt4>(arguments, grid, stream); break;
    case Encoding::kInt8: run_linear<Encoding::kInt8>(arguments, grid, stream); break;
    case Encoding::kNf4: run_linear<Encoding::kNf4>(arguments, grid, stream); break;
    case Encoding::kFp8: run_linear<Encoding::kFp8>(arguments, grid, stream); break;
    case Encoding::kMxfp4: run_linear<Encoding::kMxfp4>(arguments, grid, stream); break;
    case Encoding::kQ4_0: run_linear<Encoding::kQ4_0>(arguments, grid, stream); break;
    case Encoding::kIq4: run_linear<Encoding::kIq4>(arguments, grid, stream); break;
    default: return;
  }
}

void dequantise(const std::byte* w, const WeightFormat& format, int64_t n, int64_t k, DType type,
                uint16_t* out, int64_t ld, Stream stream) {
  if (n == 0 || k == 0) return;
  const PanelShape shape = panel_shape(format, k);
  if (format.is_k())
    return with_k_encoding(format.encoding, [&](auto encoding) {
      run_k_dequantise<encoding.value>(w, shape, n, k, type, out, ld, stream);
    });
  switch (format.encoding) {
    case Encoding::kInt4:
      return run_dequantise<Encoding::kInt4>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kInt8:
      return run_dequantise<Encoding::kInt8>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kNf4:
      return run_dequantise<Encoding::kNf4>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kFp8:
      return run_dequantise<Encoding::kFp8>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kMxfp4:
      return run_dequantise<Encoding::kMxfp4>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kQ4_0:
      return run_dequantise<Encoding::kQ4_0>(w, shape, n, k, type, out, ld, stream);
    case Encoding::kIq4:
      return run_dequantise<Encoding::kIq4>(w, shape, n, k, type, out, ld, stream);
    default: return;
  }
}

}  // namespace sluice::cuda
