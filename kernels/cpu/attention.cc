#include "kernels/attention.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/variant.h"

namespace sluice::kernels {

namespace {
int max_threads() noexcept {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

int this_thread() noexcept {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// A decode context is split only when a piece still has so many positions: less is not worth a merge.
constexpr int32_t kSplitPositions = 512;
constexpr int kMaxSplits = 64;

// How the work of one sequence is cut: token blocks x KV heads x splits of the context.
struct Cut {
  int32_t block_tokens;
  int32_t blocks;
  int32_t splits;
};

Cut cut_sequence(const AttentionShape& shape, const AttentionSequence& sequence, int splits_wanted) noexcept {
  const int group = shape.num_heads / shape.num_kv_heads;
  Cut cut{};
  cut.block_tokens = std::max(1, static_cast<int>(kAttentionRows) / group);
  cut.blocks = (sequence.count + cut.block_tokens - 1) / cut.block_tokens;
  cut.splits = 1;
  if (sequence.count == 1 && shape.sliding_window == 0)
    cut.splits = std::clamp(std::min(splits_wanted, (sequence.first_position + 1) / kSplitPositions), 1, kMaxSplits);
  return cut;
}

int64_t partial_floats(const AttentionShape& shape) noexcept {  // of one split of all heads
  return int64_t{shape.num_heads} * (shape.head_dim + 1);
}

AttentionItem make_item(const AttentionShape& shape, const AttentionSequence& sequence, const Cut& cut, int32_t index,
                        float* partials) noexcept {
  const int group = shape.num_heads / shape.num_kv_heads;
  const int32_t split = index % cut.splits;
  const int32_t block = index / cut.splits % cut.blocks;
  AttentionItem item{};
  item.kv_head = index / cut.splits / cut.blocks;
  item.token_begin = block * cut.block_tokens;
  item.token_end = std::min(sequence.count, item.token_begin + cut.block_tokens);
  item.position_end = sequence.first_position + item.token_end;
  if (shape.sliding_window > 0)
    item.position_begin = std::max(0, sequence.first_position + item.token_begin - shape.sliding_window + 1);
  if (cut.splits > 1) {
    const int32_t whole = item.position_end;
    const auto at = [&](int32_t i) { return static_cast<int32_t>(int64_t{whole} * i / cut.splits); };
    item.position_begin = at(split);
    item.position_end = at(split + 1);
    float* mine = partials + split * partial_floats(shape);
    item.out = mine + int64_t{item.kv_head} * group * shape.head_dim;
    item.lse = mine + int64_t{shape.num_heads} * shape.head_dim + int64_t{item.kv_head} * group;
  }
  return item;
}

void merge_splits(const AttentionShape& shape, const AttentionSequence& sequence, int32_t splits, float* partials) noexcept {
  const int64_t values = int64_t{shape.num_heads} * shape.head_dim;
  for (int32_t split = 1; split < splits; ++split) {
    float* other = partials + split * partial_floats(shape);
    merge_attention(partials, partials + values, other, other + values, shape.num_heads, shape.head_dim);
  }
  std::copy_n(partials, values, sequence.out);
  if (sequence.lse) std::copy_n(partials + values, shape.num_heads, sequence.lse);
}
}  // namespace

int64_t attention_scratch_floats(const AttentionShape& shape, int threads) noexcept {
  return threads * attention_thread_floats(shape) + std::min(threads, kMaxSplits) * partial_floats(shape);
}

void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences, float* scratch,
               int64_t scratch_floats) noexcept {
  const Variant& variant = active_variant();
  const int64_t mine = attention_thread_floats(shape);
  const int threads = static_cast<int>(std::clamp<int64_t>(scratch_floats / (mine + partial_floats(shape)), 1, max_threads()));
  float* partials = scratch + threads * mine;
  // Splitting a context pays only when heads alone can't keep the threads busy.
  const int splits_wanted =
      sequences.size() == 1 && shape.num_kv_heads < 2 * threads ? std::min(threads, kMaxSplits) : 1;
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    float* own = scratch + this_thread() * mine;
    size_t at = 0;      // sequence that holds item `first`..., items rise within a thread
    int64_t first = 0;  // number of its first item
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      Cut cut{};
      int64_t items = 0;
      while (at < sequences.size()) {
        cut = cut_sequence(shape, sequences[at], splits_wanted);
        items = int64_t{cut.blocks} * cut.splits * shape.num_kv_heads;
        if (item < first + items) break;
        first += items;
        ++at;
      }
      if (at == sequences.size()) break;
      variant.attend(shape, sequences[at],
                     make_item(shape, sequences[at], cut, static_cast<int32_t>(item - first), partials), own);
    }
  }
  if (splits_wanted > 1) {
    const Cut cut = cut_sequence(shape, sequences[0], splits_wanted);
    if (cut.splits > 1) merge_splits(shape, sequences[0], cut.splits, partials);
  }
}

void kv_write(const AttentionShape& shape, const float* k, const float* v, int64_t stride, int32_t first_position,
              int32_t count, std::byte* const* pages) noexcept {
  const Variant& variant = active_variant();
  const int64_t element = dtype_bytes(shape.kv_dtype);
  const int64_t row_bytes = shape.head_dim * element;
#pragma omp parallel for schedule(static) if (count > 64)
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = first_position + i;
    std::byte* page = pages[position / shape.page_tokens];
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      const int64_t row = int64_t{head} * shape.page_tokens + position % shape.page_tokens;
      const int64_t value_offset = int64_t{shape.num_kv_heads} * shape.page_tokens * row_bytes;
      const int64_t source = i * stride + int64_t{head} * shape.head_dim;
      variant.from_f32(shape.kv_dtype, k + source, page + row * row_bytes, shape.head_dim);
      variant.from_f32(shape.kv_dtype, v + source, page + value_offset + row * row_bytes, shape.head_dim);
    }
  }
}

void merge_attention(float* out, float* lse, const float* other_out, const float* other_lse, int64_t rows,
                     int64_t cols) noexcept {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    if (other_lse[row] == kNothing) continue;
    const float maximum = std::max(lse[row], other_lse[row]);
    const float mine = lse[row] == kNothing ? 0.0f : std::exp(lse[row] - maximum);
    const float theirs = std::exp(other_lse[row] - maximum);
    const float sum = mine + theirs;
    for (int64_t col = 0; col < cols; ++col)
      out[row * cols + col] = (mine * out[row * cols + col] + theirs * other_out[row * cols + col]) / sum;
    lse[row] = maximum + std::log(sum);
  }
}

}  // namespace sluice::kernels
