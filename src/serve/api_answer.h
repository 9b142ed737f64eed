#pragma once
// What a request is answered with, in OpenAI's forms: chunks of a stream as events arrive, or one
// object at the end. One thread.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/serve/answer_form.h"
#include "src/text/stream_decoder.h"

namespace sluice::serve {

/// The samples of one call, collected and written as OpenAI's forms want them.
class Answer final : public AnswerForm {
 public:
  /// `tokenizer` outlives it.
  Answer(AnswerShape shape, const text::Tokenizer& tokenizer);

  void add(const Event& event) override;
  std::string stream_of(const Event& event) override;
  /// Usage where asked for, and [DONE].
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  bool is_complete() const noexcept override { return ended_ == samples_.size(); }
  std::string whole() override;
  bool tells_of_breaks() const noexcept override { return true; }

 private:
  struct Sample {
    std::string text;
    std::vector<sampling::Choice> choices;
    std::vector<sampling::Choice> prompt;
    std::string finish_reason;
    int64_t output_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t text_offset = 0;                       ///< of the next streamed token, in characters
    std::unique_ptr<text::StreamDecoder> decoder;  ///< of the streamed tokens, for their offsets
    bool has_begun = false;                        ///< its first chunk has gone out
    std::unique_ptr<chat::MessageReader> reader;   ///< of a chat
    std::vector<chat::MessagePart> parts;          ///< of a chat: all so far
    size_t streamed = 0;                           ///< of them, how many have gone out
    std::vector<std::string> call_ids;
  };

  std::string token_name(int32_t id) const;
  nlohmann::ordered_json chat_logprobs(const std::vector<sampling::Choice>& choices) const;
  nlohmann::ordered_json completion_logprobs(const std::vector<sampling::Choice>& prompt,
                                             const std::string& prompt_text,
                                             const std::vector<sampling::Choice>& choices,
                                             text::StreamDecoder& decoder, int64_t& offset) const;
  nlohmann::ordered_json prompt_logprobs(const std::vector<sampling::Choice>& prompt) const;
  struct Offsets {
    std::vector<int64_t> tokens;  // characters before each
    int64_t end = 0;              // and all
  };
  Offsets prompt_offsets(const std::vector<sampling::Choice>& prompt,
                         const std::string& text) const;
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json head(const char* object) const;
  std::string chunk(const nlohmann::ordered_json& choice) const;
  void read(Sample& sample, std::vector<chat::MessagePart> parts) const;
  nlohmann::ordered_json delta_of(const Sample& sample, const chat::MessagePart& part) const;
  std::vector<size_t> chosen() const;
  text::StreamDecoder answer_decoder() const {
    return {tokenizer_, text::SkipSpecial::kYes, text::StreamDecoder::Position::kContinues};
  }
  const std::string& echoed(int sample) const {
    return shape_.prompt_texts[prompt_of(static_cast<size_t>(sample))];
  }
  size_t prompt_of(size_t sample) const { return sample / static_cast<size_t>(shape_.best_of); }

  AnswerShape shape_;
  const text::Tokenizer& tokenizer_;
  std::vector<Sample> samples_;
  size_t ended_ = 0;
};

}  // namespace sluice::serve
