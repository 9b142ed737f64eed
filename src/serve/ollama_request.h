#pragma once
// Bodies of Ollama's /api/chat and /api/generate as chats and completions. Pure, thread safe.
#include <string>
#include <string_view>

#include "src/serve/api_request.h"

namespace sluice::serve {

/// What the model that is served can do, as far as bodies ask for it.
struct OllamaModel {
  int64_t vocab_size = 0;
  int64_t context_tokens = 0;
  bool has_template = false;  ///< else prompts of /api/generate are sent as they are
  bool has_thoughts = false;
  bool leaves = false;  ///< the memory, as keep_alive says; else it stays until the server ends
};

struct OllamaRequest {
  enum class Kind : uint8_t {
    kLoad,  ///< nothing is asked: the model is there
    kChat,
    kPlain  ///< a prompt as it is
  };
  Kind kind = Kind::kLoad;
  ChatRequest chat;         ///< kChat; of kLoad its model
  CompletionRequest plain;  ///< kPlain
};

/// `defaults` as parse_chat has them. What is not understood, or would need pictures or templates
/// in Ollama's language, is refused by name. Throw ApiError.
OllamaRequest parse_ollama_chat(std::string_view body, const sampling::SamplingParams& defaults,
                                const OllamaModel& model);
OllamaRequest parse_ollama_generate(std::string_view body, const sampling::SamplingParams& defaults,
                                    const OllamaModel& model);
/// What Ollama's callers add to a name without a tag.
inline constexpr std::string_view kOllamaTag = ":latest";
/// `name` without it, unless that is what is served.
std::string without_tag(const std::string& name, const std::string& served);
/// What a chat's errors name, in this interface's words: `error` with them.
ApiError in_ollama_words(ApiError error);

}  // namespace sluice::serve
