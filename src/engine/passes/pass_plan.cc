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

class SequencePageMap final : public PageMap {
 public:
  SequencePageMap(std::span<Sequence* const> sequences, const PassLimits& limits)
      : sequences_(sequences), limits_(limits) {}
  LowerPages lower_pages(int64_t sequence, int32_t group) const override {
    const LowerPages all = count_lower(of(sequence, group));
    const int64_t most = limits_.groups[static_cast<size_t>(group)].most_pages;
    return {std::min(all.all, most), std::min(all.on_disk, most)};
  }
  LowerPages lower_pages(int64_t sequence, int32_t group, int64_t tokens,
                         int64_t count) const override {
    const LayerState& state = limits_.groups[static_cast<size_t>(group)].state;
    const std::span<const PageRef> all = of(sequence, group);
    LowerPages out;
    for_each_page(state, tokens - count, count, limits_.page_tokens, [&](int64_t page, bool, bool) {
      if (page >= std::ssize(all)) return;
      const LowerPages one = count_lower(all.subspan(static_cast<size_t>(page), 1));
      out.all += one.all;
      out.on_disk += one.on_disk;
    });
    return out;
  }

 private:
  std::span<const PageRef> of(int64_t sequence, int32_t group) const {
    return sequences_[static_cast<size_t>(sequence)]
        ->pages.groups[static_cast<size_t>(group)]
        .pages;
  }

  std::span<Sequence* const> sequences_;
  const PassLimits& limits_;
};

void stage_pages(const PassLimits& limits, bool on_host, MicroBatch& batch, Chunk& chunk) {
  batch.staged.resize(limits.groups.size());
  bool is_lower = false;
  for (size_t group = 0; group < limits.groups.size(); ++group) {
    StagedPages& staged = batch.staged[group];
    const PageTable& table = chunk.sequence->pages.groups[group].pages;
    chunk.first_staged.push_back(static_cast<int32_t>(staged.pages.size()));
    const auto stage = [&](int64_t page, bool has_history, bool is_changed) {
      SLUICE_ASSERT(page < std::ssize(table), "pages are there for all that is computed");
      const PageRef& ref = table[static_cast<size_t>(page)];
      SLUICE_ASSERT(!ref.is_gone(), "a page is given back when nothing sees it");
      if (ref.tier == PageTier::kCompute) return;
      const int32_t disk_index = ref.tier == PageTier::kDisk ? staged.disk_pages++ : -1;
      staged.pages.push_back({ref.tier, ref.slot, disk_index, has_history, is_changed, true});
      is_lower = true;
    };
    for_each_page(limits.groups[group].state, chunk.first_position, chunk.count, limits.page_tokens,
                  stage);
  }
  if (!on_host || !is_lower) return;
  const bool is_fresh = is_fresh_run(chunk.first_position, chunk.count);
  chunk.attention = is_fresh ? ChunkAttention::kFresh : ChunkAttention::kHost;
  batch.lower_rows += chunk.count;
  if (!is_fresh) batch.host_rows += chunk.count;
  // What the device attends to it has itself.
  for (size_t group = 0; group < limits.groups.size() && is_fresh; ++group) {
    std::vector<StagedPage>& pages = batch.staged[group].pages;
    for (auto page = static_cast<size_t>(chunk.first_staged[group]); page < pages.size(); ++page)
      pages[page].is_read = false;
  }
}

int64_t fresh_pages(const MicroBatch& batch, int64_t page_tokens) {
  int64_t pages = 0;
  for (const Chunk& chunk : batch.chunks)
    if (chunk.attention == ChunkAttention::kFresh)
      pages += (chunk.count + page_tokens - 1) / page_tokens;
  return pages;
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
        sequence.wants_all_rows() && at < sequence.prompt_tokens && at >= sequence.scored;
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
  const PagesOfRun known =
      pages_of_run(0, static_cast<int64_t>(sequence.tokens.size()), page_tokens);
  if (out.count > 0)
    for (const GroupPages& group : sequence.pages.groups) {
      const auto pages = std::min(static_cast<size_t>(known.end), group.pages.size());
      out.is_lower = out.is_lower || count_lower(std::span(group.pages).first(pages)).all > 0;
    }
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
  const SequencePageMap pages(sequences, limits);
  MicroBatchCutter cutter(limits, &pages);
  for (const TokenRun& run : taken.runs) cutter.add(run);

  PassPlan plan;
  plan.prefill_tokens = taken.prefill_tokens;
  plan.decode_tokens = taken.decode_tokens;
  plan.pass_class = pass_class;
  int64_t row_begin = 0, fresh = 0;
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
    batch.first_fresh_page = fresh;
    fresh += fresh_pages(batch, limits.page_tokens);
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
void GenerationSink::on_hidden(uint64_t, int64_t, std::span<const float>) {}
void GenerationSink::on_admitted(uint64_t, int64_t) {}
void GenerationSink::on_pass(const PassReport&) {}

}  // namespace sluice
