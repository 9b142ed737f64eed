#include "src/serve/job_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/jobs/bounded_json.h"
#include "src/serve/chat_prompt.h"
#include "src/serve/json_text.h"
#include "src/serve/message_json.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
// A line's chat as a body of /v1/chat/completions: what it says of sampling has been read.
ChatRequest chat_of(const jobs::Request& request, int64_t vocab_size) {
  using nlohmann::ordered_json;
  const auto parse = [](const std::string& text) {
    return jobs::parse_bounded<ordered_json>(text, INT32_MAX, "the chat");
  };
  ordered_json body = request.chat.empty() ? ordered_json::object() : parse(request.chat);
  body["messages"] = parse(request.prompt);
  return parse_chat(body.dump(), request.params, vocab_size);
}
}  // namespace

std::string other_model(const jobs::Request& request, const std::string& model_name,
                        const std::vector<std::string>& adapters) {
  if (request.model.empty() || request.model == model_name) return {};
  if (std::find(adapters.begin(), adapters.end(), request.model) != adapters.end()) return {};
  std::string names;
  for (const std::string& name : adapters) names += fmt::format(", \"{}\"", name);
  return fmt::format("model is \"{}\"; this is \"{}\"{}: name it so, or leave \"model\" out",
                     request.model.substr(0, 200), model_name,
                     names.empty() ? "" : " with the adapters" + names.substr(1));
}

LinePrompt line_prompt(const jobs::Request& request, const text::Tokenizer* tokenizer,
                       const ChatStyle& style) {
  LinePrompt out;
  out.params = request.params;
  out.ids = request.prompt_ids;
  if (!out.ids.empty()) return out;
  if (!tokenizer)
    throw Error(ErrorKind::kUser, "the model has no tokenizer",
                "give prompts as lists of token ids");
  if (!request.is_chat) {
    out.ids = tokenizer->encode(request.prompt, text::AddSpecial::kYes);
    return out;
  }
  if (!style.chat)
    throw Error(ErrorKind::kUser, "the model has no chat template",
                "give one when the run is started, or the finished text as \"prompt\"");
  try {
    // Ids in the parameters were checked when the line was read.
    const ChatRequest chat = chat_of(request, INT32_MAX);
    if (!style.takes_templates) refuse_own_template(chat);
    ChatPrompt prompt =
        chat_prompt(chat, style.chat, *tokenizer, style.tools, style.splits_thoughts);
    // The template writes the special tokens itself.
    out.ids = tokenizer->encode(prompt.text, text::AddSpecial::kNo);
    out.form = std::move(prompt.form);
    out.keeps_special = prompt.keeps_special;
    if (prompt.guide.kind != sampling::GuideKind::kNone) {
      out.params.guide = std::move(prompt.guide);
      sampling::validate(out.params);
    }
  } catch (const ApiError& error) {
    throw Error(ErrorKind::kUser, error.message);
  }
  return out;
}

void read_answer(const jobs::Request& request, const chat::MessageForm& form,
                 jobs::Completion& completion) {
  if (!request.is_chat || (!form.calls && !form.has_thoughts && !form.has_channels)) return;
  chat::MessageReader reader(form);
  std::vector<chat::MessagePart> parts = reader.add(completion.text);
  for (chat::MessagePart& part : reader.finish()) parts.push_back(std::move(part));
  std::vector<std::string> call_ids;
  for (const chat::MessagePart& part : parts)
    if (part.kind == chat::MessagePart::Kind::kCall) call_ids.push_back(call_id(form, part));
  completion.message = dump(message_json(parts, call_ids));
  if (!call_ids.empty() && completion.finish_reason == "stop")
    completion.finish_reason = "tool_calls";
}

std::vector<jobs::TokenText> token_texts(const std::vector<sampling::Choice>& choices,
                                         const text::Tokenizer* tokenizer) {
  const auto named = [&](int32_t id, float logprob) {
    if (!tokenizer) return jobs::NamedToken{std::to_string(id), {}, logprob};
    std::string bytes(tokenizer->token_bytes(id));
    return jobs::NamedToken{text::mend_utf8(bytes), bytes, logprob};
  };
  std::vector<jobs::TokenText> out;
  for (const sampling::Choice& choice : choices) {
    jobs::TokenText& token = out.emplace_back();
    static_cast<jobs::NamedToken&>(token) = named(choice.token, choice.logprob);
    for (const auto& other : choice.top) token.top.push_back(named(other.token, other.logprob));
  }
  return out;
}

}  // namespace sluice::serve
