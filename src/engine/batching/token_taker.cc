#include "src/engine/batching/token_taker.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace sluice {

namespace {
Sequence& sequence_of(const MicroBatch& batch, size_t needed_index) {
  return *batch.needed_chunks[needed_index]->sequence;
}
int64_t position_of(const MicroBatch& batch, size_t needed_index) {
  return batch.positions[static_cast<size_t>(batch.needed_rows[needed_index])];
}
}  // namespace

void TokenTaker::begin_pass(GenerationSink& sink, bool is_prefill, std::function<void()> check) {
  sink_ = &sink;
  is_prefill_ = is_prefill;
  check_ = std::move(check);
}

void TokenTaker::check_once() {
  if (const auto check = std::exchange(check_, nullptr)) check();
}

void TokenTaker::count() noexcept {
  ++tokens_;
  if (is_prefill_) ++first_tokens_;
}

bool TokenTaker::is_scored(const MicroBatch& batch, size_t needed_index) const {
  const Sequence& sequence = sequence_of(batch, needed_index);
  const int64_t position = position_of(batch, needed_index);
  return sequence.score_prompt && position < sequence.prompt_tokens && position >= sequence.scored;
}

std::optional<TokenRequest> TokenTaker::wanted_token(const MicroBatch& batch, size_t needed_index) {
  Sequence& sequence = sequence_of(batch, needed_index);
  if (is_scored(batch, needed_index) || sequence.group) return std::nullopt;
  try {
    return TokenRequest{&sequence.sampler, sequence.history()};
  } catch (const Error& error) {
    // A guide that has grown too large: told when the logits come.
    if (error.kind() != ErrorKind::kUser) throw;
    return std::nullopt;
  }
}

// What this request asked for leaves it no token; the others go on.
void TokenTaker::refuse(Sequence& sequence, const Error& error) {
  if (error.kind() != ErrorKind::kUser) throw;
  sink_->on_refused(sequence.id, error.text());
  sequence.finished = FinishReason::kCancelled;
}

void TokenTaker::take_token(const MicroBatch& batch, size_t needed_index, sampling::Choice choice) {
  check_once();
  Sequence& sequence = sequence_of(batch, needed_index);
  try {
    if (sequence.guide)
      sequence.guide_state = sequence.guide->after(sequence.guide_state, choice.token);
  } catch (const Error& error) {
    return refuse(sequence, error);
  }
  sequence.surprise_drift = choice.surprise_drift;
  append(sequence, choice);
}

void TokenTaker::take_logits(const MicroBatch& batch, size_t needed_index,
                             std::span<const float> logits) {
  check_once();
  Sequence& sequence = sequence_of(batch, needed_index);
  if (is_scored(batch, needed_index)) {
    const int64_t position = position_of(batch, needed_index);
    sink_->on_logits(sequence.id, position, logits);
    sequence.scored = position + 1;
    const bool is_last = sequence.scored == sequence.prompt_tokens;
    if (is_last && sequence.score_only) sequence.finished = FinishReason::kScored;
    if (!is_last || sequence.score_only) return;
  }
  if (sequence.group) return take_beam(sequence, logits);
  sampling::Choice choice;
  try {
    choice = sequence.sampler.pick(logits, sequence.history(), workspace_);
  } catch (const Error& error) {
    return refuse(sequence, error);
  }
  take_token(batch, needed_index, std::move(choice));
}

bool TokenTaker::wants_hidden(const MicroBatch& batch, size_t needed_index) {
  return sequence_of(batch, needed_index).hidden_rows != HiddenRows::kNone;
}

void TokenTaker::take_hidden(const MicroBatch& batch, size_t needed_index,
                             std::span<const float> row) {
  check_once();
  Sequence& sequence = sequence_of(batch, needed_index);
  const int64_t position = position_of(batch, needed_index);
  // Computed again after a preemption: the sink has had it.
  if (position < sequence.scored) return;
  sink_->on_hidden(sequence.id, position, row);
  sequence.scored = position + 1;
  if (sequence.scored == sequence.prompt_tokens) sequence.finished = FinishReason::kScored;
}

void TokenTaker::append(Sequence& sequence, const sampling::Choice& choice) {
  sequence.tokens.push_back(choice.token);
  count();
  const sampling::SamplingParams& params = sequence.sampler.params();
  const auto& eos = sequence.sampler.eos_token_ids();
  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), choice.token) != ids.end();
  };
  const bool goes_on = sink_->on_token(sequence.id, choice);
  const bool is_complete = sequence.guide && sequence.guide->is_complete(sequence.guide_state);
  if (!goes_on || is_complete || is_in(eos) || is_in(params.stop_token_ids))
    sequence.finished = FinishReason::kStop;
  else if (static_cast<int64_t>(sequence.output().size()) >= params.max_tokens ||
           static_cast<int64_t>(sequence.tokens.size()) >= context_tokens_)
    sequence.finished = FinishReason::kLength;
}

void TokenTaker::take_beam(Sequence& sequence, std::span<const float> logits) {
  BeamGroup& group = *sequence.group;
  try {
    group.candidates[sequence.beam] = sequence.sampler.beam_candidates(
        logits, sequence.history(), group.search.candidates_wanted(), workspace_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUser) throw;
    group.refusal = error.text();
    return;
  }
  const int alternatives = sequence.sampler.params().logprobs;
  if (alternatives > 0)
    group.alternatives[sequence.beam] = sampling::score_token(logits, 0, alternatives).top;
  count();
}

}  // namespace sluice
