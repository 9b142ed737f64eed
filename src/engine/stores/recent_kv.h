#pragma once
// The newest keys and values of each running sequence once more, in 16 bits, beside their quantised
// pages (--kv-recent): attention reads the last tokens from here and the older ones from the pages.
// A slot a sequence, in memory where the tokens are computed; of a slot a ring of pages in each
// layer. And the attention that joins both. One thread at a time.
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "policy/plan.h"
#include "src/base/arena.h"

namespace sluice {

/// How layers attend, by ModelShape::state_groups.
using AttentionShapes = std::vector<kernels::AttentionShape>;

class RecentKv {
 public:
  /// `shapes`: of the 16-bit pages, by group of layers. Nothing is reserved, and no slot is needed,
  /// when the plan keeps none. Errors: kResource.
  RecentKv(const policy::Plan& plan, AttentionShapes shapes, Arena& memory);

  bool is_used() const noexcept { return plan_.tokens > 0; }
  bool has_free_slot() const noexcept { return !is_used() || !free_slots_.empty(); }
  /// -1 when none are used.
  int32_t take_slot();
  void give_back(int32_t slot);

  /// Appends an address for each page up to position `end`; those of the newest positions are
  /// right, older ones are of pages used again.
  void page_addresses(const StatePlace& at, int32_t slot, int64_t end,
                      std::vector<std::byte*>& out) const;

  int64_t tokens() const noexcept { return plan_.tokens; }
  const AttentionShapes& shapes() const noexcept { return shapes_; }
  std::span<std::byte> memory() const noexcept { return pages_.span(); }

 private:
  policy::RecentPlan plan_;
  AttentionShapes shapes_;
  std::vector<int64_t> page_bytes_;  // by group
  std::vector<int64_t> offsets_;     // of the groups in pages_
  std::vector<int32_t> free_slots_;
  Buffer pages_;  // [group][layer][slot][page]
};

/// A run of new tokens of one sequence, K and V of the same row stride.
struct RecentSequence {
  kernels::AttentionSequence attention;  ///< over the quantised pages
  std::byte* const* recent_pages = nullptr;
  const float* k = nullptr;  ///< null: written by another layer
  const float* v = nullptr;
  int64_t kv_stride = 0;
};

/// Floats of scratch for `rows` rows: a second output, and two log-sum-exps a head.
int64_t recent_scratch_floats(const kernels::AttentionShape& shape, int64_t rows) noexcept;

/// Writes the 16-bit pages and attends: a query sees its `tokens` newest positions (itself counts)
/// in the 16-bit pages, older ones in the quantised ones, as one softmax. `packed` is the quantised
/// shape, whose pages have been written; rows of the sequences' outputs are contiguous.
/// `attention_scratch` is what kernels::attention needs for either shape.
void attend_with_recent(const kernels::AttentionShape& packed,
                        const kernels::AttentionShape& recent, int64_t tokens,
                        std::span<const RecentSequence> sequences,
                        std::span<float> attention_scratch, std::span<float> scratch);

}  // namespace sluice
