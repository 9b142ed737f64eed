#pragma once
// A model's own chat template: how messages become the text that it was trained on. Immutable after
// loading, so any number of threads may use one.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "src/chat/template.h"

namespace sluice::chat {

/// A template as a model's files hold it.
struct ChatTemplateSource {
  std::string text;
  std::string tools_text;  ///< the one for requests with tools, where the model has two; or empty
  std::string bos_token, eos_token;
  std::string origin;  ///< the file, for messages
};

/// What a model folder says: chat_template.jinja, or "chat_template" of tokenizer_config.json (a
/// text, or a list of named ones: "default" and "tool_use"), with its special tokens. Nothing: the
/// model has no template. Errors: kFile.
std::optional<ChatTemplateSource> find_chat_template(const std::filesystem::path& folder);

/// The same from the text of tokenizer_config.json alone; `origin` is its file.
std::optional<ChatTemplateSource> read_chat_template(std::string_view tokenizer_config,
                                                     const std::string& origin);

class ChatTemplate {
 public:
  /// Errors: kFile naming origin and line.
  explicit ChatTemplate(ChatTemplateSource source);

  /// The prompt for `messages` (an array of {"role", "content", ...}), ending with the beginning of
  /// the answer when `adds_generation_prompt`. `tools`: null or an array. `variables`: an object of
  /// further names, or null. The text holds its special tokens: encode it without adding any.
  /// Errors: kUser where it refuses the messages, or can't be rendered with them.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool adds_generation_prompt, const nlohmann::ordered_json& variables) const;

  const ChatTemplateSource& source() const noexcept { return source_; }
  /// Whether its text has the word: a variable that is not there changes nothing.
  bool mentions(std::string_view word) const {
    return source_.text.find(word) != std::string::npos ||
           source_.tools_text.find(word) != std::string::npos;
  }

 private:
  ChatTemplateSource source_;
  Template template_;
  std::optional<Template> tools_template_;
};

}  // namespace sluice::chat
