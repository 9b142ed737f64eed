#pragma once
// The small trained model behind a GenerationService, for the tests here.
#include <memory>
#include <string>

#include "src/serve/generation_service.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::serve {

class ServedModel {
 public:
  explicit ServedModel(int64_t most_waiting = 1000, int64_t sequences = 4, int64_t context = 256,
                       const AdapterRoom& adapters = {}, int64_t most_caller_tokens = INT64_MAX)
      : tokenizer_(text::Tokenizer::load(testing::fixture_model("stories260k"))) {
    EngineOptions options;
    options.threads = 1;
    options.adapters = adapters;
    options.compute = ComputeChoice::kF32;
    options.context_tokens = context;
    options.predict_lengths = true;
    options.cache_prefixes = true;
    options.workload.sequences = sequences;
    options.workload.max_prompt_tokens = options.workload.max_total_tokens = context;
    options.workload.total_tokens = context;  // far from enough for all at their longest
    options.policy = policy::Policy{};
    options.policy->micro_batch_sequences = sequences;
    options.policy->pass_tokens = 64;
    options.policy->page_tokens = 8;
    engine_ = Engine::open(testing::fixture_model("stories260k"), options);
    service_ = std::make_unique<GenerationService>(*engine_, *tokenizer_, "stories", most_waiting,
                                                   QueueOrder::kFirstCome, most_caller_tokens);
  }

  GenerationService& service() { return *service_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  std::vector<int32_t> encode(const std::string& text) const {
    return tokenizer_->encode(text, text::AddSpecial::kYes);
  }
  /// A greedy submission.
  Submission greedy(const std::string& prompt, int max_tokens) const {
    Submission out;
    out.prompt = encode(prompt);
    out.params.temperature = 0;
    out.params.max_tokens = max_tokens;
    return out;
  }

 private:
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GenerationService> service_;
};

/// What a submission's samples came to.
struct Told {
  std::vector<std::string> texts;
  std::vector<std::string> reasons;
  std::vector<int64_t> tokens;
  std::vector<std::vector<sampling::Choice>> prompts;
  std::string refused, failed;
};

inline Told hear(Mailbox& mailbox, size_t samples) {
  Told told{std::vector<std::string>(samples),
            std::vector<std::string>(samples),
            std::vector<int64_t>(samples),
            std::vector<std::vector<sampling::Choice>>(samples),
            "",
            ""};
  for (size_t ended = 0; ended < samples;) {
    const auto event = mailbox.take(std::chrono::seconds(60));
    if (!event) {
      ADD_FAILURE() << "nothing came for a minute";
      break;
    }
    const auto index = static_cast<size_t>(event->index);
    ended += event->is_last();
    switch (event->kind) {
      case Event::Kind::kText: told.texts[index] += event->text; break;
      case Event::Kind::kPrompt: told.prompts[index] = event->prompt_tokens; break;
      case Event::Kind::kFinished:
        told.reasons[index] = event->finish_reason;
        told.tokens[index] = event->output_tokens;
        break;
      case Event::Kind::kRefused: told.refused = event->text; break;
      case Event::Kind::kFailed: told.failed = event->text; break;
      case Event::Kind::kStarted: break;
    }
  }
  return told;
}

}  // namespace sluice::serve
