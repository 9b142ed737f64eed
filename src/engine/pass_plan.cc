#include "src/engine/pass_plan.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

namespace {
// Appends to the last micro-batch, or opens a new one when it is full.
class MicroBatchBuilder {
 public:
  MicroBatchBuilder(PassPlan& plan, const PassLimits& limits) : plan_(plan), limits_(limits) {}

  void add(Sequence& sequence, int64_t count, bool is_whole) {
    int64_t position = sequence.computed;
    const int64_t end = position + count;
    bool is_split = false;
    while (position < end) {
      MicroBatch& batch = open_batch(sequence, is_whole ? count : 1);
      batch.continues_previous = batch.continues_previous || is_split;
      const int64_t piece = std::min(end - position, limits_.micro_batch_tokens - batch.rows());
      add_chunk(batch, sequence, position, piece);
      position += piece;
      is_split = true;
    }
  }

 private:
  // Sequences that share pages below the compute tier each stage them: a slot may be full before
  // the micro-batch is.
  bool has_slot_room(const MicroBatch& batch, const Sequence& sequence) const {
    int64_t lower = 0, disk = 0;
    for (const PageRef& page : sequence.pages) {
      lower += page.tier != PageTier::kCompute;
      disk += page.tier == PageTier::kDisk;
    }
    return static_cast<int64_t>(batch.staged.size()) + lower <= limits_.staged_pages &&
           batch.disk_pages + disk <= limits_.staged_disk_pages;
  }

  // One with room for `rows` more.
  MicroBatch& open_batch(const Sequence& sequence, int64_t rows) {
    if (!plan_.micro_batches.empty()) {
      MicroBatch& last = *plan_.micro_batches.back();
      if (last.rows() + rows <= limits_.micro_batch_tokens &&
          static_cast<int64_t>(last.chunks.size()) < limits_.micro_batch_sequences &&
          has_slot_room(last, sequence))
        return last;
    }
    auto batch = std::make_unique<MicroBatch>();
    if (!plan_.micro_batches.empty()) {
      const MicroBatch& last = *plan_.micro_batches.back();
      batch->row_begin = last.row_begin + last.rows();
    }
    batch->chunks.reserve(
        static_cast<size_t>(limits_.micro_batch_sequences));  // needed_chunks point into it
    plan_.micro_batches.push_back(std::move(batch));
    return *plan_.micro_batches.back();
  }

  void add_chunk(MicroBatch& batch, Sequence& sequence, int64_t position, int64_t count) {
    Chunk& chunk = batch.chunks.emplace_back();
    chunk.sequence = &sequence;
    chunk.first_position = static_cast<int32_t>(position);
    chunk.count = static_cast<int32_t>(count);
    chunk.row_begin = static_cast<int32_t>(batch.rows());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = position + i;
      const bool is_last = at + 1 == static_cast<int64_t>(sequence.tokens.size());
      const bool is_scored =
          sequence.score_prompt && at < sequence.prompt_tokens && at >= sequence.scored;
      if (is_scored || is_last) {
        batch.needed_rows.push_back(static_cast<int32_t>(batch.rows()));
        batch.needed_chunks.push_back(&chunk);
      }
      batch.token_ids.push_back(sequence.tokens[static_cast<size_t>(at)]);
      batch.positions.push_back(static_cast<int32_t>(at));
    }
    stage_pages(batch, chunk);
  }

  void stage_pages(MicroBatch& batch, Chunk& chunk) const {
    chunk.first_staged = static_cast<int32_t>(batch.staged.size());
    const int64_t end = int64_t{chunk.first_position} + chunk.count;
    const int64_t pages = (end + limits_.page_tokens - 1) / limits_.page_tokens;
    SLUICE_ASSERT(pages <= static_cast<int64_t>(chunk.sequence->pages.size()),
                  "pages are reserved for the whole length");
    for (int64_t page = 0; page < pages; ++page) {
      const PageRef& ref = chunk.sequence->pages[static_cast<size_t>(page)];
      if (ref.tier == PageTier::kCompute) continue;
      const int64_t page_begin = page * limits_.page_tokens;
      const int32_t disk_index = ref.tier == PageTier::kDisk ? batch.disk_pages++ : -1;
      batch.staged.push_back({ref.tier, ref.slot, disk_index,
                              page_begin<chunk.first_position, page_begin + limits_.page_tokens>
                                  chunk.first_position});
    }
    const bool is_lower = static_cast<int32_t>(batch.staged.size()) > chunk.first_staged;
    if (!limits_.attends_on_host || !is_lower) return;
    const bool is_fresh = chunk.first_position == 0 && chunk.count > 1;
    chunk.attention = is_fresh ? ChunkAttention::kFresh : ChunkAttention::kHost;
    batch.lower_rows += chunk.count;
    if (!is_fresh) batch.host_rows += chunk.count;
  }

  PassPlan& plan_;
  const PassLimits& limits_;
};

// Whether what is known of a sequence lies below the compute tier: a later chunk of its prompt
// would bring that up again, or be attended on the host.
bool has_lower_pages(const Sequence& sequence, int64_t page_tokens) {
  const size_t pages = (sequence.tokens.size() + static_cast<size_t>(page_tokens) - 1) /
                       static_cast<size_t>(page_tokens);
  const auto end =
      sequence.pages.begin() + static_cast<std::ptrdiff_t>(std::min(pages, sequence.pages.size()));
  return std::any_of(sequence.pages.begin(), end,
                     [](const PageRef& page) { return page.tier != PageTier::kCompute; });
}
}  // namespace

PassPlan plan_pass(std::span<Sequence* const> sequences, const PassLimits& limits) {
  PassPlan plan;
  MicroBatchBuilder builder(plan, limits);
  int64_t room = limits.pass_tokens;
  const auto is_decoding = [](const Sequence& s) {
    return s.pending() == 1 && s.computed >= s.prompt_tokens;
  };
  for (Sequence* sequence : sequences) {
    if (sequence->finished || !is_decoding(*sequence)) continue;
    builder.add(*sequence, 1, false);
    ++plan.decode_tokens;
    --room;
  }
  const int64_t room_of_prompts = room;
  for (Sequence* sequence : sequences) {
    if (sequence->finished || is_decoding(*sequence) || sequence->pending() == 0) continue;
    const int64_t pending = sequence->pending();
    const int64_t count = std::min(pending, room);
    if (count <= 0) break;
    const bool is_lower = has_lower_pages(*sequence, limits.page_tokens);
    // It goes whole into the next pass, as the first there.
    if (is_lower && count < pending && pending <= room_of_prompts) break;
    builder.add(*sequence, count, is_lower && count <= limits.micro_batch_tokens);
    plan.prefill_tokens += count;
    room -= count;
  }
  if (plan.micro_batches.size() == 1) plan.micro_batches.front()->is_alone = true;
  return plan;
}

const char* finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kScored: return "scored";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "stop";
}

void GenerationSink::on_hypotheses(uint64_t, const std::vector<sampling::Hypothesis>&) {}
void GenerationSink::on_logits(uint64_t, int64_t, std::span<const float>) {}
void GenerationSink::on_admitted(uint64_t, int64_t) {}
void GenerationSink::on_pass(const PassReport&) {}

}  // namespace sluice
