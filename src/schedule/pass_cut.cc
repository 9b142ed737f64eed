#include "src/schedule/pass_cut.h"

#include <algorithm>

namespace sluice {

namespace {
// Prompts behind `cut`, which does not fit the room, that do within half of it: the shortest first.
std::vector<size_t> shorter_than(std::span<const PendingTokens> pending, size_t cut, int64_t room) {
  std::vector<size_t> shorter;
  for (size_t i = cut + 1; i < pending.size(); ++i)
    if (!pending[i].decodes && pending[i].count > 0 && pending[i].count < pending[cut].count)
      shorter.push_back(i);
  std::stable_sort(shorter.begin(), shorter.end(),
                   [&](size_t a, size_t b) { return pending[a].count < pending[b].count; });
  int64_t left = room / 2;
  size_t fitting = 0;
  while (fitting < shorter.size() && pending[shorter[fitting]].count <= left)
    left -= pending[shorter[fitting++]].count;
  shorter.resize(fitting);
  return shorter;
}
}  // namespace

PassTokens take_tokens(std::span<const PendingTokens> pending, const PassLimits& limits) {
  PassTokens out;
  int64_t room = limits.pass_tokens;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (!pending[i].decodes) continue;
    out.runs.push_back({static_cast<int64_t>(i), pending[i].first, 1, false, pending[i].is_lower});
    ++out.decode_tokens;
    --room;
  }
  const int64_t room_of_prompts = room;
  const auto take = [&](size_t i, int64_t count) {
    const PendingTokens& one = pending[i];
    out.runs.push_back({static_cast<int64_t>(i), one.first, count,
                        one.is_lower && count <= limits.micro_batch_tokens, one.is_lower});
    out.prefill_tokens += count;
    room -= count;
  };
  for (size_t i = 0; i < pending.size() && room > 0; ++i) {
    const PendingTokens& one = pending[i];
    if (one.decodes || one.count == 0) continue;
    if (one.count <= room) {
      take(i, one.count);
      continue;
    }
    for (size_t shorter : shorter_than(pending, i, room)) take(shorter, pending[shorter].count);
    // It goes whole into the next pass, as the first there; else in part: no room is left.
    if (!one.is_lower || one.count > room_of_prompts) take(i, std::min(one.count, room));
    break;
  }
  return out;
}

// A prompt from its first token needs none of its pages: they go down while the device attends.
LowerAttention MicroBatchCutter::attention_of(const TokenRun& run) const noexcept {
  if (!run.is_lower) return LowerAttention::kNone;
  if (!limits_.attends_on_host) return LowerAttention::kDevice;
  const bool is_short =
      limits_.host_attention_tokens == 0 || run.count <= limits_.host_attention_tokens;
  return is_short || is_fresh_run(run.first, run.count) ? LowerAttention::kHost
                                                        : LowerAttention::kDevice;
}

// Sequences that share pages below the compute tier each stage them: a slot may be full before the
// micro-batch is.
bool MicroBatchCutter::has_slot_room(const MicroBatchCut& cut, int64_t sequence,
                                     LowerAttention lower) const {
  if (!pages_) return true;
  for (size_t group = 0; group < limits_.groups.size(); ++group) {
    const LowerPages more = pages_->lower_pages(sequence, static_cast<int32_t>(group));
    const LowerPages& most = limits_.groups[group].staged;
    const bool is_brought_up = lower != LowerAttention::kHost;
    if ((is_brought_up && cut.staged[group].all + more.all > most.all) ||
        cut.staged[group].on_disk + more.on_disk > most.on_disk)
      return false;
  }
  return true;
}

// One with room for `rows` more.
MicroBatchCut& MicroBatchCutter::open(int64_t sequence, int64_t rows, LowerAttention lower) {
  if (!cuts_.empty()) {
    MicroBatchCut& last = cuts_.back();
    const bool is_alike = lower == LowerAttention::kNone || last.lower == LowerAttention::kNone ||
                          lower == last.lower;
    if (is_alike && last.rows + rows <= limits_.micro_batch_tokens &&
        static_cast<int64_t>(last.runs.size()) < limits_.micro_batch_sequences &&
        has_slot_room(last, sequence, lower))
      return last;
  }
  MicroBatchCut& cut = cuts_.emplace_back();
  if (pages_) cut.staged.resize(limits_.groups.size());
  return cut;
}

void MicroBatchCutter::add(TokenRun run) {
  bool is_split = false;
  while (run.count > 0) {
    const LowerAttention lower = attention_of(run);
    MicroBatchCut& cut = open(run.sequence, run.is_whole ? run.count : 1, lower);
    if (lower != LowerAttention::kNone) cut.lower = lower;
    cut.continues_previous = cut.continues_previous || is_split;
    const int64_t piece = std::min(run.count, limits_.micro_batch_tokens - cut.rows);
    cut.runs.push_back({run.sequence, run.first, piece, run.is_whole, run.is_lower});
    cut.rows += piece;
    run.first += piece;
    run.count -= piece;
    for (size_t group = 0; group < cut.staged.size(); ++group) {
      const LowerPages staged =
          pages_->lower_pages(run.sequence, static_cast<int32_t>(group), run.first, piece);
      cut.staged[group].all += staged.all;
      cut.staged[group].on_disk += staged.on_disk;
    }
    is_split = true;
  }
}

}  // namespace sluice
