#include "src/app/generate_text.h"

#include <algorithm>

namespace sluice::app {

void TextSink::expect(const GenerationRequest& request, bool keeps_special) {
  Running& running = running_[request.id];
  running.result.id = request.id;
  running.result.prompt_ids = request.prompt;
  running.keeps_choices = request.params.logprobs >= 0;
  if (tokenizer_)
    running.decoder = std::make_unique<text::StreamDecoder>(
        *tokenizer_, keeps_special ? text::SkipSpecial::kNo : text::SkipSpecial::kYes,
        text::StreamDecoder::Position::kContinues, end_ids_);
  running.stops = std::make_unique<sampling::StopMatcher>(request.params.stop);
}

void TextSink::emit(Running& running, const std::string& piece) {
  if (piece.empty()) return;
  running.result.text += piece;
  if (on_text) on_text(running.result.id, piece);
}

bool TextSink::on_token(uint64_t id, const sampling::Choice& choice) {
  Running& running = running_.at(id);
  running.result.token_ids.push_back(choice.token);
  if (running.keeps_choices) running.result.choices.push_back(choice);
  if (!running.decoder) return true;
  const auto outcome = running.stops->push(running.decoder->push(choice.token));
  emit(running, outcome.emit);
  return !outcome.stopped;
}

void TextSink::on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first) {
  Running& running = running_.at(id);
  for (const sampling::Hypothesis& hypothesis : best_first) {
    TextHypothesis& beam = running.result.beams.emplace_back();
    beam.score = hypothesis.score;
    beam.finish_reason =
        finish_reason_name(hypothesis.is_stopped ? FinishReason::kStop : FinishReason::kLength);
    std::optional<text::StreamDecoder> decoder;
    if (tokenizer_)
      decoder.emplace(*tokenizer_, text::SkipSpecial::kYes,
                      text::StreamDecoder::Position::kContinues);
    for (const sampling::Choice& choice : hypothesis.choices) {
      beam.token_ids.push_back(choice.token);
      if (decoder) beam.text += decoder->push(choice.token);
    }
    if (decoder) beam.text += decoder->finish();
  }
  for (const sampling::Choice& choice : best_first.front().choices) on_token(id, choice);
}

void TextSink::on_finish(uint64_t id, FinishReason reason) {
  const auto it = running_.find(id);
  if (it == running_.end()) return;
  Running& running = it->second;
  if (running.decoder && !running.stops->stopped()) {
    emit(running, running.stops->push(running.decoder->finish()).emit);
    emit(running, running.stops->flush());
  }
  running.result.finish_reason = finish_reason_name(reason);
  TextResult result = std::move(running.result);
  running_.erase(it);
  if (on_result) on_result(std::move(result));
}

void TextSink::on_refused(uint64_t id, const std::string& message) {
  TextResult result;
  const auto it = running_.find(id);
  if (it != running_.end()) {
    result = std::move(it->second.result);
    running_.erase(it);
  }
  result.id = id;
  result.refused = message;
  if (on_result) on_result(std::move(result));
}

void TextSink::on_pass(const PassReport& report) {
  if (on_pass_report) on_pass_report(report);
}

std::optional<GenerationRequest> PromptSource::next() {
  if (requests_.empty()) return std::nullopt;
  GenerationRequest request = std::move(requests_.front());
  requests_.pop_front();
  sink_.expect(request);
  return request;
}

void add_to_workload(policy::Workload& workload, int64_t prompt_tokens, int64_t new_tokens,
                     int beams) {
  if (workload.total_tokens == 0) workload.sequences = 0;
  workload.sequences += beams;
  workload.beams = std::max<int64_t>(workload.beams, beams);
  workload.max_prompt_tokens = std::max(workload.max_prompt_tokens, prompt_tokens);
  workload.max_total_tokens = std::max(workload.max_total_tokens, prompt_tokens + new_tokens);
  workload.total_tokens += beams * (prompt_tokens + new_tokens);
  workload.prompt_tokens += beams * prompt_tokens;
}

}  // namespace sluice::app
