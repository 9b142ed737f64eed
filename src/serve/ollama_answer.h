#pragma once
// An answer of Ollama's /api/chat or /api/generate: an object, or a line of JSON for each piece.
// One thread.
#include <nlohmann/json.hpp>
#include <string>

#include "src/serve/block_answer.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

class OllamaAnswer final : public BlockAnswer {
 public:
  /// Which of the two it answers.
  enum class Route : uint8_t { kChat, kGenerate };
  /// `tokenizer` outlives it.
  OllamaAnswer(AnswerShape shape, bool streams, Route route, const text::Tokenizer& tokenizer)
      : BlockAnswer(std::move(shape), streams), tokenizer_(tokenizer), route_(route) {}

  std::string whole() override;
  ErrorShape error_shape() const noexcept override { return ErrorShape::kOllama; }
  const char* stream_type() const noexcept override { return "application/x-ndjson"; }
  /// Space before a line means nothing to who reads JSON.
  const char* sign_of_life() const noexcept override { return " "; }

 protected:
  std::string begun() override { return {}; }
  std::string opened(size_t) override { return {}; }
  std::string grown(size_t block, const std::string& more) override;
  std::string closed(size_t block) override;
  std::string ended() override;
  std::string failed(const ApiError& error) override;

 private:
  nlohmann::ordered_json piece(const std::string& text, const std::string& thought,
                               nlohmann::ordered_json calls);
  nlohmann::ordered_json logprobs(const std::vector<sampling::Choice>& choices) const;
  nlohmann::ordered_json call_json(size_t block) const;
  nlohmann::ordered_json done(nlohmann::ordered_json piece) const;

  const text::Tokenizer& tokenizer_;
  const Route route_;
};

/// The time now, as Ollama writes it.
std::string ollama_time();

}  // namespace sluice::serve
