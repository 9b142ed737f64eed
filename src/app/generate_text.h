#pragma once
// From prompts to text: tokens of the engine through the incremental decoder and the stop strings.
// What the commands run, batch and bench share; a library user needs these few calls only. One
// thread at a time.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/engine.h"
#include "src/sampling/stop.h"
#include "src/text/stream_decoder.h"
#include "src/text/tokenizer.h"

namespace sluice::app {

/// One of the sequences that a beam search ended with.
struct TextHypothesis {
  std::string text;
  std::vector<int32_t> token_ids;
  double score = 0;  ///< sum of log-probabilities / length ^ length_penalty
  std::string finish_reason;
};

/// What came out of one request.
struct TextResult {
  uint64_t id = 0;
  std::string text;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> token_ids;
  std::vector<sampling::Choice> choices;  ///< when logprobs were asked for
  std::string finish_reason;              ///< "stop", "length", "cancelled"; empty when refused
  std::string refused;                    ///< why it could not run; empty otherwise
  std::vector<TextHypothesis> beams;      ///< of a beam search, best first; the first is the result
};

/// Sequences as they run. The sink of a generate() call.
class TextSink final : public GenerationSink {
 public:
  /// `tokenizer` may be null (ids only). The callbacks may be empty. `end_ids`: tokens that end a
  /// text, and are none where special tokens are.
  explicit TextSink(const text::Tokenizer* tokenizer, std::vector<int32_t> end_ids = {})
      : tokenizer_(tokenizer), end_ids_(std::move(end_ids)) {}

  std::function<void(uint64_t id, const std::string& piece)>
      on_text;  ///< complete characters, never part of a stop string
  std::function<void(TextResult&& result)> on_result;  ///< once a request, ended or refused
  std::function<void(const PassReport&)> on_pass_report;

  /// Announces a request before the engine takes it. `keeps_special`: special tokens are text.
  void expect(const GenerationRequest& request, bool keeps_special = false);

  bool on_token(uint64_t id, const sampling::Choice& choice) override;
  void on_hypotheses(uint64_t id, const std::vector<sampling::Hypothesis>& best_first) override;
  void on_finish(uint64_t id, FinishReason reason) override;
  void on_refused(uint64_t id, const std::string& message) override;
  void on_pass(const PassReport& report) override;

 private:
  struct Running {
    TextResult result;
    std::unique_ptr<text::StreamDecoder> decoder;
    std::unique_ptr<sampling::StopMatcher> stops;
    bool keeps_choices = false;
  };
  void emit(Running& running, const std::string& piece);

  const text::Tokenizer* tokenizer_;
  std::vector<int32_t> end_ids_;
  std::map<uint64_t, Running> running_;
};

/// Requests given beforehand, told to a TextSink as the engine takes them.
class PromptSource final : public RequestSource {
 public:
  PromptSource(std::deque<GenerationRequest> requests, TextSink& sink)
      : requests_(std::move(requests)), sink_(sink) {}
  std::optional<GenerationRequest> next() override;

 private:
  std::deque<GenerationRequest> requests_;
  TextSink& sink_;
};

/// Adds a request's lengths to a workload, once for each of its beams.
void add_to_workload(policy::Workload& workload, int64_t prompt_tokens, int64_t new_tokens,
                     int beams = 1);

}  // namespace sluice::app
