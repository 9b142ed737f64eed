#include "src/serve/job_line.h"

#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/text/utf8.h"

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

std::vector<jobs::TokenText> token_texts(const std::vector<sampling::Choice>& choices,
                                         const text::Tokenizer* tokenizer) {
  const auto name = [&](int32_t id) {
    return tokenizer ? text::mend_utf8(tokenizer->token_bytes(id)) : std::to_string(id);
  };
  std::vector<jobs::TokenText> out;
  for (const sampling::Choice& choice : choices) {
    jobs::TokenText& token = out.emplace_back();
    token = {name(choice.token), choice.logprob, {}};
    for (const auto& other : choice.top) token.top.emplace_back(name(other.token), other.logprob);
  }
  return out;
}

}  // namespace sluice::serve
