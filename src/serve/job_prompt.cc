#include "src/serve/job_prompt.h"

#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice::serve {

std::vector<int32_t> prompt_of(const jobs::Request& request, const text::Tokenizer* tokenizer,
                               const chat::ChatTemplate* chat) {
  if (!request.prompt_ids.empty()) return request.prompt_ids;
  if (!tokenizer)
    throw Error(ErrorKind::kUser, "the model has no tokenizer",
                "give prompts as lists of token ids");
  if (!request.is_chat) return tokenizer->encode(request.prompt, text::AddSpecial::kYes);
  if (!chat)
    throw Error(ErrorKind::kUser, "the model has no chat template",
                "give one with --chat-template FILE, or the finished text as \"prompt\"");
  // The template writes the special tokens itself.
  return tokenizer->encode(
      chat->render(nlohmann::ordered_json::parse(request.prompt), nullptr, true, nullptr),
      text::AddSpecial::kNo);
}

}  // namespace sluice::serve
