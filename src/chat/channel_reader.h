#pragma once
// Answers in channels (OpenAI's harmony, of gpt-oss), read as they come:
//
//   <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>answer
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"a": 1}<|call|>
//
// Analysis is thought, a message to a function is a call, anything else is text. One thread.
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/message_part.h"

namespace sluice::chat {

/// What an answer in channels may be read as.
struct ChannelForm {
  bool has_calls = false;     ///< else what is said to functions is text
  bool has_thoughts = false;  ///< else analysis is text
  std::string begun;  ///< what the prompt has begun the answer with: a header, or part of one
};

/// Reads one answer.
class ChannelReader {
 public:
  explicit ChannelReader(ChannelForm form);

  /// What is certain once `text` (whole characters) has come.
  std::vector<MessagePart> add(std::string_view text);
  /// The rest, at the answer's end. A header that has no end is no text.
  std::vector<MessagePart> finish();
  /// Calls so far.
  int calls() const noexcept { return calls_; }

 private:
  bool step();
  bool step_header();
  bool step_body();
  void open(std::string_view header);
  void emit(std::string_view text);

  const ChannelForm form_;
  bool in_body_ = false;
  bool is_over_ = false;
  MessagePart::Kind kind_ = MessagePart::Kind::kText;  // of the body
  bool is_empty_ = true;                               // nothing of the body has been told
  bool has_text_ = false, has_thought_ = false;
  std::string pending_;
  int calls_ = 0;
  std::vector<MessagePart> out_;
};

}  // namespace sluice::chat
