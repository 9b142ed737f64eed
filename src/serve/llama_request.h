#pragma once
// Bodies of llama.cpp's /completion as completions. Pure, thread safe.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/serve/api_request.h"

namespace sluice::serve {

struct LlamaRequest {
  CompletionRequest call;
  /// The prompt in parts, texts and token ids: where it is given so `call` has no prompt yet.
  std::vector<std::variant<std::string, int32_t>> parts;
  nlohmann::ordered_json prompt;    ///< as it was given
  nlohmann::ordered_json settings;  ///< what holds, in its words: generation_settings
  bool returns_tokens = false;
};

/// `defaults` hold for what the body does not give. Throws ApiError: what is not understood, or
/// would change the answer and is not here, is refused by name.
LlamaRequest parse_llama_completion(std::string_view body, const sampling::SamplingParams& defaults,
                                    int64_t vocab_size);

/// What completions' errors name, in this interface's words: `error` with them.
ApiError in_llama_words(ApiError error);

/// Parameters under the names that llama.cpp has for them.
nlohmann::ordered_json llama_settings(const sampling::SamplingParams& params);

}  // namespace sluice::serve
