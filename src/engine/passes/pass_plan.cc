#include "src/engine/passes/pass_plan.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

namespace {
LowerPages count_lower(std::span<const PageRef> pages) {
  LowerPages out;
  for (const PageRef& page : pages) {
    out.all += page.tier != PageTier::kCompute;
    out.on_disk += page.tier == PageTier::kDisk;
  }
  return out;
}

std::span<const PageRef> pages_of(const Sequence& sequence, int64_t tokens, int64_t page_tokens) {
  const auto pages = static_cast<size_t>((tokens + page_tokens - 1) / page_tokens);
  return std::span<const PageRef>(sequence.pages).first(std::min(pages, sequence.pages.size()));
}

class SequencePages final : public PageMap {
 public:
  SequencePages(std::span<Sequence* const> sequences, int64_t page_tokens)
      : sequences_(sequences), page_tokens_(page_tokens) {}
  LowerPages lower_pages(int64_t sequence) const override {
    return count_lower(of(sequence).pages);
  }
  LowerPages lower_pages(int64_t sequence, int64_t tokens) const override {
    return count_lower(pages_of(of(sequence), tokens, page_tokens_));
  }

 private:
  const Sequence& of(int64_t sequence) const { return *sequences_[static_cast<size_t>(sequence)]; }

  std::span<Sequence* const> sequences_;
  int64_t page_tokens_;
};

void stage_pages(const PassLimits& limits, bool on_host, MicroBatch& batch, Chunk& chunk) {
  chunk.first_staged = static_cast<int32_t>(batch.staged.size());
  const PagesOfRun pages = pages_of_run(chunk.first_position, chunk.count, limits.page_tokens);
  SLUICE_ASSERT(pages.end <= static_cast<int64_t>(chunk.sequence->pages.size()),
                "pages are reserved for the whole length");
  for (int64_t page = 0; page < pages.end; ++page) {
    const PageRef& ref = chunk.sequence->pages[static_cast<size_t>(page)];
    if (ref.tier == PageTier::kCompute) continue;
    const int32_t disk_index = ref.tier == PageTier::kDisk ? batch.disk_pages++ : -1;
    const bool has_history = page < pages.with_history;
    const bool is_changed = page >= pages.first_changed;
    batch.staged.push_back({ref.tier, ref.slot, disk_index, has_history, is_changed});
  }
  const bool is_lower = static_cast<int32_t>(batch.staged.size()) > chunk.first_staged;
  if (!on_host || !is_lower) return;
  const bool is_fresh = is_fresh_run(chunk.first_position, chunk.count);
  chunk.attention = is_fresh ? ChunkAttention::kFresh : ChunkAttention::kHost;
  batch.lower_rows += chunk.count;
  if (!is_fresh) batch.host_rows += chunk.count;
}

void add_chunk(const PassLimits& limits, bool on_host, MicroBatch& batch, Sequence& sequence,
               const TokenRun& run) {
  Chunk& chunk = batch.chunks.emplace_back();
  chunk.sequence = &sequence;
  chunk.first_position = static_cast<int32_t>(run.first);
  chunk.count = static_cast<int32_t>(run.count);
  chunk.row_begin = static_cast<int32_t>(batch.rows());
  for (int64_t at = run.first; at < run.first + run.count; ++at) {
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
  stage_pages(limits, on_host, batch, chunk);
}

PendingTokens pending_of(const Sequence& sequence, int64_t page_tokens) {
  if (sequence.finished) return {};
  PendingTokens out;
  out.first = sequence.computed;
  out.count = sequence.pending();
  out.decodes = out.count == 1 && sequence.computed >= sequence.prompt_tokens;
  // Whether what is known of it lies below the compute tier: a later chunk of its prompt would
  // bring that up again, or be attended on the host.
  if (out.count > 0)
    out.is_lower =
        count_lower(pages_of(sequence, static_cast<int64_t>(sequence.tokens.size()), page_tokens))
            .all > 0;
  return out;
}
}  // namespace

PassPlan plan_pass(std::span<Sequence* const> sequences, const PassLimits& limits) {
  return plan_pass(sequences, {&limits, 1}, [](const PassTokens&) { return size_t{0}; });
}

PassPlan plan_pass(std::span<Sequence* const> sequences, std::span<const PassLimits> by_class,
                   const PassChooser& choose) {
  std::vector<PendingTokens> pending;
  for (const Sequence* sequence : sequences)
    pending.push_back(pending_of(*sequence, by_class.front().page_tokens));
  // Classes differ in how tokens are cut, not in how many a pass takes.
  PassTokens taken = take_tokens(pending, by_class.front());
  const size_t pass_class = choose(taken);
  const PassLimits& limits = by_class[pass_class];
  if (pass_class > 0) taken = take_tokens(pending, limits);
  const SequencePages pages(sequences, limits.page_tokens);
  MicroBatchCutter cutter(limits, &pages);
  for (const TokenRun& run : taken.runs) cutter.add(run);

  PassPlan plan;
  plan.prefill_tokens = taken.prefill_tokens;
  plan.decode_tokens = taken.decode_tokens;
  plan.pass_class = pass_class;
  int64_t row_begin = 0;
  for (const MicroBatchCut& cut : cutter.take()) {
    MicroBatch& batch = *plan.micro_batches.emplace_back(std::make_unique<MicroBatch>());
    batch.pass_class = pass_class;
    batch.row_begin = row_begin;
    row_begin += cut.rows;
    batch.continues_previous = cut.continues_previous;
    batch.chunks.reserve(cut.runs.size());  // needed_chunks point into it
    const bool on_host = limits.attends_on_host && cut.lower != LowerAttention::kDevice;
    for (const TokenRun& run : cut.runs)
      add_chunk(limits, on_host, batch, *sequences[static_cast<size_t>(run.sequence)], run);
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
