#pragma once
// An answer of llama.cpp's /completion: an object (of several prompts a list of them), or an event
// for each piece of text. One thread.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/http/message.h"
#include "src/serve/answer_form.h"
#include "src/serve/llama_request.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

class LlamaAnswer final : public AnswerForm {
 public:
  /// `tokenizer` outlives it.
  LlamaAnswer(AnswerShape shape, const LlamaRequest& request, const text::Tokenizer& tokenizer);

  void add(const Event& event) override;
  std::string stream_of(const Event& event) override;
  /// Nothing: the last piece says that it is the last.
  std::string stream_end() override { return {}; }
  std::string stream_error(const ApiError& error) override;
  bool is_complete() const noexcept override { return ended_ == samples_.size(); }
  std::string whole() override;

 private:
  using Clock = http::Clock;
  struct Sample {
    std::string text;
    std::vector<sampling::Choice> choices;
    std::string finish_reason, stop_string;
    int64_t output_tokens = 0, cached_tokens = 0;
    Clock::time_point started, first, ended;  // computed; its first token; its last
  };

  nlohmann::ordered_json piece(size_t index, const std::string& text,
                               const std::vector<sampling::Choice>& choices) const;
  nlohmann::ordered_json last(size_t index, const std::string& text,
                              const std::vector<sampling::Choice>& choices) const;
  nlohmann::ordered_json probabilities(const std::vector<sampling::Choice>& choices) const;
  nlohmann::ordered_json timings(const Sample& sample, int64_t prompt_tokens) const;

  const AnswerShape shape_;
  const nlohmann::ordered_json prompt_, settings_;
  const bool returns_tokens_;
  const text::Tokenizer& tokenizer_;
  std::vector<Sample> samples_;
  size_t ended_ = 0;
};

}  // namespace sluice::serve
