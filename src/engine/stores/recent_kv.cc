#include "src/engine/stores/recent_kv.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

RecentKv::RecentKv(const policy::Plan& plan, AttentionShapes shapes, Arena& memory)
    : plan_(plan.recent), shapes_(std::move(shapes)) {
  if (!is_used()) return;
  int64_t offset = 0;
  for (const policy::KvPlan& kv : plan.kv) {
    page_bytes_.push_back(kv.recent_page_bytes);
    offsets_.push_back(offset);
    offset += kv.num_layers * plan_.slots * plan_.slot_pages * kv.recent_page_bytes;
  }
  pages_ = memory.allocate(plan.recent_bytes(), "recent KV in 16 bits");
  for (auto slot = static_cast<int32_t>(plan_.slots); slot > 0; --slot)
    free_slots_.push_back(slot - 1);
}

int32_t RecentKv::take_slot() {
  if (!is_used()) return -1;
  SLUICE_ASSERT(!free_slots_.empty(), "admission looks for a free slot first");
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void RecentKv::give_back(int32_t slot) {
  if (slot >= 0) free_slots_.push_back(slot);
}

void RecentKv::page_addresses(const StatePlace& at, int32_t slot, int64_t end,
                              std::vector<std::byte*>& out) const {
  const auto group = static_cast<size_t>(at.group);
  const int64_t page_tokens = shapes_[group].page_tokens;
  const int64_t pages = (end + page_tokens - 1) / page_tokens;
  std::byte* first = pages_.data() + offsets_[group] +
                     (at.layer * plan_.slots + slot) * plan_.slot_pages * page_bytes_[group];
  for (int64_t page = 0; page < pages; ++page)
    out.push_back(first + page % plan_.slot_pages * page_bytes_[group]);
}

int64_t recent_scratch_floats(const kernels::AttentionShape& shape, int64_t rows) noexcept {
  return rows * shape.num_heads * (shape.head_dim + 2);
}

namespace {
// One step of a sequence: its new tokens [begin, begin + count), few enough that the ring still has
// what the first of them sees.
struct Step {
  const RecentSequence* sequence;
  int32_t begin;
  int32_t count;
  int64_t row;  // of its first token in the scratch
};

kernels::AttentionSequence part_of(const Step& step, int32_t first, int32_t count) {
  kernels::AttentionSequence part = step.sequence->attention;
  part.q += first * part.q_stride;
  part.out += first * part.out_stride;
  part.first_position += first;
  part.count = count;
  return part;
}
}  // namespace

void attend_with_recent(const kernels::AttentionShape& packed,
                        const kernels::AttentionShape& in_16_bits, int64_t tokens,
                        std::span<const RecentSequence> sequences,
                        std::span<float> attention_scratch, std::span<float> scratch) {
  kernels::AttentionShape recent = packed;
  recent.kv_dtype = in_16_bits.kv_dtype;
  recent.page_tokens = in_16_bits.page_tokens;
  recent.sliding_window = in_16_bits.sliding_window;
  kernels::AttentionShape older = packed;
  older.sinks = nullptr;  // they count once
  older.sliding_window = std::max<int>(0, packed.sliding_window - static_cast<int>(tokens));
  const bool sees_older = packed.sliding_window == 0 || older.sliding_window > 0;
  const int64_t heads = packed.num_heads;
  const int64_t cols = heads * packed.head_dim;
  int32_t longest = 0;
  for (const RecentSequence& sequence : sequences)
    longest = std::max(longest, sequence.attention.count);
  const auto most_scratch = static_cast<int64_t>(attention_scratch.size());
  for (int32_t begin = 0; begin < longest; begin += policy::RecentPlan::kStepTokens) {
    std::vector<Step> steps;
    int64_t rows = 0;
    for (const RecentSequence& sequence : sequences) {
      const int32_t count =
          std::min(sequence.attention.count - begin, policy::RecentPlan::kStepTokens);
      if (count <= 0) continue;
      steps.push_back({&sequence, begin, count, rows});
      rows += count;
    }
    SLUICE_ASSERT(recent_scratch_floats(packed, rows) <= static_cast<int64_t>(scratch.size()),
                  "the plan sizes the scratch");
    float* other_out = scratch.data();
    float* lse = other_out + rows * cols;
    float* other_lse = lse + rows * heads;
    std::vector<kernels::AttentionSequence> near, far;
    for (const Step& step : steps) {
      const RecentSequence& sequence = *step.sequence;
      SLUICE_ASSERT(sequence.attention.out_stride == cols, "outputs are whole matrices");
      const int32_t first = sequence.attention.first_position + step.begin;
      if (sequence.k)
        kernels::kv_write(recent, sequence.k + step.begin * sequence.kv_stride,
                          sequence.v + step.begin * sequence.kv_stride, sequence.kv_stride, first,
                          step.count, sequence.recent_pages);
      kernels::AttentionSequence& own = near.emplace_back(part_of(step, step.begin, step.count));
      own.pages = sequence.recent_pages;
      own.lse = lse + step.row * heads;
      // The first of its tokens that has older ones behind it.
      const auto skipped = static_cast<int32_t>(std::max<int64_t>(0, tokens - first));
      if (!sees_older || skipped >= step.count) continue;
      kernels::AttentionSequence& other =
          far.emplace_back(part_of(step, step.begin + skipped, step.count - skipped));
      other.first_position -= static_cast<int32_t>(tokens);
      other.out = other_out + (step.row + skipped) * cols;
      other.lse = other_lse + (step.row + skipped) * heads;
    }
    kernels::attention(recent, near, attention_scratch.data(), most_scratch);
    if (far.empty()) continue;
    kernels::attention(older, far, attention_scratch.data(), most_scratch);
    // They have attended as if they stood `tokens` nearer.
    const float moved = static_cast<float>(tokens) * (packed.rounds_slopes ? packed.scale : 1);
    if (packed.slopes)
      for (int64_t i = 0; i < rows * heads; ++i) other_lse[i] -= packed.slopes[i % heads] * moved;
    for (const Step& step : steps) {
      const int32_t first = step.sequence->attention.first_position + step.begin;
      const int64_t skipped = std::max<int64_t>(0, tokens - first);
      if (skipped >= step.count) continue;
      kernels::merge_attention(step.sequence->attention.out + (step.begin + skipped) * cols,
                               lse + (step.row + skipped) * heads,
                               other_out + (step.row + skipped) * cols,
                               other_lse + (step.row + skipped) * heads,
                               (step.count - skipped) * heads, packed.head_dim);
    }
  }
}

}  // namespace sluice
