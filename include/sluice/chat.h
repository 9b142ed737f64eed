#pragma once
// Chats by a model's own template: messages become a prompt, what the model answers becomes text,
// thoughts and calls of tools. As `sluice serve` does it for the same fields.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/session.h"
#include "sluice/tokenizer.h"

namespace sluice {

/// A piece of an answer.
struct ChatPart {
  enum class Kind : uint8_t {
    kText,
    kThought,   ///< between <think> and </think>
    kCall,      ///< a call begins; text is the function's name
    kArguments  ///< more of the call's arguments, which are JSON
  };
  Kind kind = Kind::kText;
  std::string text;
  int call = 0;    ///< kCall, kArguments: which, from 0
  std::string id;  ///< of a kCall, in the form that the model's template takes back
};

/// Reads one answer as it comes. What turns out to be no call stays text. One thread.
class ChatReader {
 public:
  ChatReader(ChatReader&&) noexcept;
  ~ChatReader();
  /// What is certain once `text` (whole characters) has come.
  std::vector<ChatPart> add(std::string_view text);
  /// The rest, at the answer's end.
  std::vector<ChatPart> finish();

 private:
  friend class ChatPrompt;
  struct Impl;
  explicit ChatReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A chat as the model is given it. A value.
class ChatPrompt {
 public:
  /// With its special tokens: Tokenizer::encode(text, false).
  const std::string& text() const;
  /// Of calls of tools, for Question::guide; kNone: none may be called.
  Guide guide() const;
  /// For Question::keeps_special: calls begin with a special token.
  bool keeps_special() const;
  ChatReader reader() const;

 private:
  friend class Chat;
  struct Impl;
  explicit ChatPrompt(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// A handle; copies share it, any thread may use it.
class Chat {
 public:
  /// The template of a model folder or a GGUF file, or `template_text` (Jinja) in its place; where
  /// there is neither, nothing. Errors: kFile naming file and line.
  static std::optional<Chat> find(const std::filesystem::path& model, const Tokenizer& tokenizer,
                                  const std::string& template_text = {});

  /// `request`: a JSON object with "messages" and, as in OpenAI's and vLLM's interface, "tools",
  /// "tool_choice", "parallel_tool_calls", "documents", "chat_template", "chat_template_kwargs",
  /// "add_generation_prompt", "continue_final_message", "reasoning_effort". `is_guided`: the answer
  /// is held to a guide of the caller's, so that it has no thoughts and no calls. Errors: kUser
  /// naming the field.
  ChatPrompt prompt(std::string_view request, bool is_guided = false) const;

 private:
  struct Impl;
  explicit Chat(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace sluice
