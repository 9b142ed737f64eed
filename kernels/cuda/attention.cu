#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_block.h"

namespace sluice::cuda {

namespace {
template <KvKind kKind, int kDim>
SLUICE_KERNEL(attention_warps(kDim) * kWarp)
attention_kernel(kernels::AttentionShape shape, AttentionArguments arguments, int first_item,
                 bool has_few_rows) {
  const AttentionItem item = arguments.items[first_item + block_x()];
  if (item.run < 0) return;
  AttentionBlock<kKind, kDim> block(shape, arguments, item, block_y(), has_few_rows);
  block.run();
}

constexpr int kMergeThreads = 128;

SLUICE_KERNEL(kMergeThreads)
merge_kernel(kernels::AttentionShape shape, AttentionArguments arguments) {
  const AttentionMerge merge = arguments.merges[block_x()];
  if (merge.run < 0) return;
  const AttentionRun run = arguments.runs[merge.run];
  const int group = shape.num_heads / shape.num_kv_heads;
  const int head_dim = shape.head_dim;
  const auto share = [&](int split, int row) {
    return arguments.workspace +
           ((int64_t{merge.first_split + split} * shape.num_kv_heads + block_y()) * kFewRows +
            row) *
               (head_dim + 1);
  };
  for (int i = thread_index(); i < merge.rows * head_dim; i += kMergeThreads) {
    const int row = i / head_dim;
    float maximum = share(0, row)[head_dim];
    for (int split = 1; split < merge.splits; ++split) {
      const float theirs = share(split, row)[head_dim];
      maximum = theirs > maximum ? theirs : maximum;
    }
    float sum = 0, value = 0;
    for (int split = 0; split < merge.splits; ++split) {
      const float factor = exp2_approx(share(split, row)[head_dim] - maximum);
      sum += factor;
      value += factor * share(split, row)[i % head_dim];
    }
    arguments.out[(run.row_begin + row / group) * arguments.out_stride +
                  (int64_t{block_y()} * group + row % group) * head_dim + i % head_dim] =
        value / sum;
  }
}

template <KvKind kKind, int kDim>
void run_items(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream) {
  using Block = AttentionBlock<kKind, kDim>;
  const auto tiles = static_cast<int>(plan.tile_items);
  const auto few = static_cast<int>(plan.items.size()) - tiles;
  if (tiles > 0)
    launch("attention", attention_kernel<kKind, kDim>, {tiles, shape.num_kv_heads}, Block::kThreads,
           Block::shared_bytes(Block::kTile), stream, shape, arguments, 0, false);
  if (few > 0)
    launch("attention_few_rows", attention_kernel<kKind, kDim>, {few, shape.num_kv_heads},
           Block::kThreads, Block::shared_bytes(kFewRows), stream, shape, arguments, tiles, true);
}

template <KvKind kKind>
void run_kind(const kernels::AttentionShape& shape, const AttentionPlan& plan,
              const AttentionArguments& arguments, Stream stream) {
  switch (padded_head_dim(shape.head_dim)) {
    case 64: return run_items<kKind, 64>(shape, plan, arguments, stream);
    case 128: return run_items<kKind, 128>(shape, plan, arguments, stream);
    default: return run_items<kKind, 256>(shape, plan, arguments, stream);
  }
}

constexpr int kWriteThreads = 128;

template <bool kIsInt8>
SLUICE_DEVICE void write_quantised(const kernels::AttentionShape& shape, const float* from,
                                   std::byte* head, int in_page) {
  constexpr float kLevels = kIsInt8 ? 255.0f : 15.0f;
  constexpr int kGroup = static_cast<int>(KvFormat::kGroup);
  const int head_dim = shape.head_dim;
  const int code_bytes = kIsInt8 ? (head_dim + 15) / 16 * 16 : (head_dim + 31) / 32 * 16;
  auto* scales =
      reinterpret_cast<uint16_t*>(head + static_cast<int64_t>(shape.page_tokens) * code_bytes);
  auto* codes = reinterpret_cast<uint8_t*>(head) + static_cast<int64_t>(in_page) * code_bytes;
  for (int begin = 0; begin < head_dim; begin += kGroup) {
    // Two elements a lane, kWarp apart: those that a 4-bit byte holds are 16 apart.
    float value[2];
    float low = 3e38f, high = -3e38f;
    for (int i = 0; i < 2; ++i) {
      const int d = begin + i * kWarp + lane_index();
      value[i] = d < head_dim ? from[d] : 0.0f;
      if (d >= head_dim) continue;
      low = value[i] < low ? value[i] : low;
      high = value[i] > high ? value[i] : high;
    }
    low = -warp_max(-low);
    high = warp_max(high);
    const auto clamp = [](float x, float least, float most) {
      return x < least ? least : x > most ? most : x;
    };
    const uint16_t minimum = float_to_half(clamp(low, -65504.0f, 65504.0f));
    const float base = half_to_float(minimum);
    const uint16_t scale = float_to_half(clamp((high - base) / kLevels, 0x1p-14f, 65504.0f));
    const float inverse = 1.0f / half_to_float(scale);
    int code[2];
    for (int i = 0; i < 2; ++i)
      code[i] =
          static_cast<int>(clamp(floor_of((value[i] - base) * inverse + 0.5f), 0.0f, kLevels));
    for (int i = 0; i < 2; ++i) {
      const int d = begin + i * kWarp + lane_index();
      if (kIsInt8) {
        if (d < head_dim) codes[d] = static_cast<uint8_t>(code[i]);
        continue;
      }
      const int upper = shuffle(code[i], lane_index() % 16 + 16);
      const int block = begin + i * kWarp;
      if (lane_index() < 16 && block < head_dim)
        codes[block / 2 + lane_index()] = static_cast<uint8_t>(
            (d < head_dim ? code[i] : 0) | (d + 16 < head_dim ? upper << 4 : 0));
    }
    if (lane_index() == 0) {
      scales[int64_t{begin} / kGroup * 2 * shape.page_tokens + in_page] = scale;
      scales[(int64_t{begin} / kGroup * 2 + 1) * shape.page_tokens + in_page] = minimum;
    }
  }
}

// A block a row, a warp a head of K or V.
template <KvKind kKind>
SLUICE_KERNEL(kWriteThreads)
kv_write_kernel(kernels::AttentionShape shape, int64_t row_bytes, const float* k, const float* v,
                int64_t stride, const KvPlace* places, int64_t page_offset) {
  const int64_t row = block_x();
  const KvPlace place = places[row];
  if (!place.page) return;
  for (int i = warp_index(); i < 2 * shape.num_kv_heads; i += kWriteThreads / kWarp) {
    const float* from =
        (i < shape.num_kv_heads ? k : v) + row * stride + i % shape.num_kv_heads * shape.head_dim;
    std::byte* head = place.page + page_offset + int64_t{i} * shape.page_tokens * row_bytes;
    if (kKind == KvKind::kInt8 || kKind == KvKind::kInt4) {
      write_quantised<kKind == KvKind::kInt8>(shape, from, head, place.in_page);
      continue;
    }
    auto* to = reinterpret_cast<uint16_t*>(head) + int64_t{place.in_page} * shape.head_dim;
    for (int d = lane_index(); d < shape.head_dim; d += kWarp)
      to[d] = kKind == KvKind::kBF16 ? float_to_bf16(from[d]) : float_to_half(from[d]);
  }
}

KvKind kind_of(const KvFormat& format) {
  switch (format.encoding) {
    case KvEncoding::kInt8: return KvKind::kInt8;
    case KvEncoding::kInt4: return KvKind::kInt4;
    case KvEncoding::kPlain: break;
  }
  return format.dtype == DType::kBF16 ? KvKind::kBF16 : KvKind::kF16;
}
}  // namespace

void attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream) {
  switch (kind_of(shape.kv_dtype)) {
    case KvKind::kF16: run_kind<KvKind::kF16>(shape, plan, arguments, stream); break;
    case KvKind::kBF16: run_kind<KvKind::kBF16>(shape, plan, arguments, stream); break;
    case KvKind::kInt8: run_kind<KvKind::kInt8>(shape, plan, arguments, stream); break;
    case KvKind::kInt4: run_kind<KvKind::kInt4>(shape, plan, arguments, stream); break;
  }
  if (!plan.merges.empty())
    launch("attention_merge", merge_kernel,
           {static_cast<int>(plan.merges.size()), shape.num_kv_heads}, kMergeThreads, 0, stream,
           shape, arguments);
}

void kv_write(const kernels::AttentionShape& shape, const float* k, const float* v, int64_t stride,
              const KvPlace* places, int64_t page_offset, int64_t rows, Stream stream) {
  if (rows == 0) return;
  const int64_t row_bytes = shape.kv_dtype.row_bytes(shape.head_dim);
  const auto run = [&](auto kernel) {
    launch("kv_write", kernel, {static_cast<int>(rows)}, kWriteThreads, 0, stream, shape, row_bytes,
           k, v, stride, places, page_offset);
  };
  switch (kind_of(shape.kv_dtype)) {
    case KvKind::kF16: return run(kv_write_kernel<KvKind::kF16>);
    case KvKind::kBF16: return run(kv_write_kernel<KvKind::kBF16>);
    case KvKind::kInt8: return run(kv_write_kernel<KvKind::kInt8>);
    case KvKind::kInt4: return run(kv_write_kernel<KvKind::kInt4>);
  }
}

}  // namespace sluice::cuda
