#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/latent_attention.h"
#include "kernels/cuda/wide_attention.h"

namespace sluice::cuda {

namespace {
template <KvKind kKind, int kDim, bool kHasFewRows, bool kAdjusts>
SLUICE_KERNEL_OF_BLOCKS(
    attention_warps(kDim) * kWarp,
    (AttentionBlock<kKind, kDim, kHasFewRows, kAdjusts>::Budget::kPlannedBlocks))
attention_kernel(kernels::AttentionShape shape, AttentionArguments arguments, int first_item) {
  using Block = AttentionBlock<kKind, kDim, kHasFewRows, kAdjusts>;
  state_budget<typename Block::Budget>();
  const AttentionItem item = arguments.items[first_item + block_x()];
  if (item.run < 0) return;
  Block block(shape, arguments, item, block_y());
  block.run();
}

constexpr int kMergeThreads = 128;

// `split_rows`: of a KV head and a split in the workspace.
SLUICE_KERNEL(kMergeThreads)
merge_kernel(int group, int num_kv_heads, int split_rows, int head_dim, const float* sinks,
             AttentionArguments arguments) {
  const AttentionMerge merge = arguments.merges[block_x()];
  if (merge.run < 0) return;
  const AttentionRun run = arguments.runs[merge.run];
  const int64_t split_floats = int64_t{num_kv_heads} * split_rows * (head_dim + 1);
  const float* shares = arguments.workspace + merge.first_split * split_floats +
                        block_y() * split_rows * (head_dim + 1);
  float* const out =
      arguments.out + run.row_begin * arguments.out_stride + int64_t{block_y()} * group * head_dim;
  const auto share = [&](int split, int row) {
    return shares + split * split_floats + row * (head_dim + 1);
  };
  for (int i = thread_index(); i < merge.rows * head_dim; i += kMergeThreads) {
    const int row = i / head_dim;
    float maximum = share(0, row)[head_dim];
    for (int split = 1; split < merge.splits; ++split) {
      const float theirs = share(split, row)[head_dim];
      maximum = theirs > maximum ? theirs : maximum;
    }
    float sum = 0, value = 0;
    if (sinks) {  // one more share, whose value is zero
      const float sink = sinks[block_y() * group + row % group] * kLog2E;
      maximum = sink > maximum ? sink : maximum;
      sum = exp2_approx(sink - maximum);
    }
    for (int split = 0; split < merge.splits; ++split) {
      const float factor = exp2_approx(share(split, row)[head_dim] - maximum);
      sum += factor;
      value += factor * share(split, row)[i % head_dim];
    }
    out[row / group * arguments.out_stride + row % group * head_dim + i % head_dim] = value / sum;
  }
}

void merge_splits(const kernels::AttentionShape& shape, const AttentionPlan& plan,
                  const AttentionArguments& arguments, Stream stream) {
  if (plan.merges.empty()) return;
  // Where keys are the values, each query head is merged as a KV head of one row.
  const int kv_heads = shape.has_values ? shape.num_kv_heads : shape.num_heads;
  launch("attention_merge", merge_kernel, {static_cast<int>(plan.merges.size()), kv_heads},
         kMergeThreads, 0, stream, shape.num_heads / kv_heads, kv_heads,
         shape.has_values ? kFewRows : 1, shape.head_dim, shape.sinks, arguments);
}

template <KvKind kKind, int kDim, bool kAdjusts>
void run_items(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream) {
  using Tiles = AttentionBlock<kKind, kDim, false, kAdjusts>;
  using FewRows = AttentionBlock<kKind, kDim, true, kAdjusts>;
  const auto tiles = static_cast<int>(plan.tile_items);
  const auto few = static_cast<int>(plan.items.size()) - tiles;
  if (tiles > 0)
    launch("attention", attention_kernel<kKind, kDim, false, kAdjusts>, {tiles, shape.num_kv_heads},
           Tiles::kThreads, Tiles::Budget::kSharedBytes, stream, shape, arguments, 0);
  if (few > 0)
    launch("attention_few_rows", attention_kernel<kKind, kDim, true, kAdjusts>,
           {few, shape.num_kv_heads}, FewRows::kThreads, FewRows::Budget::kSharedBytes, stream,
           shape, arguments, tiles);
}

// Calls visit(kind, dim) with the two as constants.
template <class Visit>
void with_kernel(const kernels::AttentionShape& shape, const Visit& visit) {
  const auto with_dim = [&](auto kind) {
    switch (padded_head_dim(shape.head_dim)) {
      case 64: return visit(kind, Constant<64>());
      case 128: return visit(kind, Constant<128>());
      default: return visit(kind, Constant<256>());
    }
  };
  switch (kind_of(shape.kv_dtype)) {
    case KvKind::kF16: return with_dim(Constant<KvKind::kF16>());
    case KvKind::kBF16: return with_dim(Constant<KvKind::kBF16>());
    case KvKind::kInt8: return with_dim(Constant<KvKind::kInt8>());
    case KvKind::kInt4: return with_dim(Constant<KvKind::kInt4>());
    case KvKind::kInt8Int4: return with_dim(Constant<KvKind::kInt8Int4>());
  }
}

}  // namespace

int64_t few_rows_shared_bytes(const kernels::AttentionShape& shape) {
  if (shape.head_dim > kMostKeptDim) return kWideSharedBytes;
  int64_t bytes = 0;
  with_kernel(shape, [&](auto kind, auto dim) {
    bytes = AttentionBlock<kind.value, dim.value, true, false>::Budget::kSharedBytes;
  });
  return bytes;
}

void attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream) {
  if (!shape.has_values)
    latent_attention(shape, plan, arguments, stream);
  else if (shape.head_dim > kMostKeptDim)
    wide_attention(shape, plan, arguments, stream);
  else
    with_kernel(shape, [&](auto kind, auto dim) {
      if (shape.soft_cap > 0 || shape.slopes)
        run_items<kind.value, dim.value, true>(shape, plan, arguments, stream);
      else
        run_items<kind.value, dim.value, false>(shape, plan, arguments, stream);
    });
  merge_splits(shape, plan, arguments, stream);
}

}  // namespace sluice::cuda
