#include "src/serve/message_json.h"

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

namespace sluice::serve {

using nlohmann::ordered_json;

namespace {
// Mistral's templates take ids of nine letters and digits and no others.
std::string random_call_id(int length) {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id = length > 0 ? "" : "call_";
  for (int i = 0; i < (length > 0 ? length : 24); ++i)
    id += kLetters[std::uniform_int_distribution<size_t>(0, kLetters.size() - 1)(random)];
  return id;
}
}  // namespace

std::string call_id(const chat::MessageForm& form, const chat::MessagePart& call) {
  if (!form.calls->id_begin.empty())
    return chat::numbered_call_id(*form.calls, call.text, form.calls_before + call.call);
  return random_call_id(form.calls->id_length);
}

ordered_json message_json(std::span<const chat::MessagePart> parts,
                          std::span<const std::string> call_ids) {
  using Kind = chat::MessagePart::Kind;
  std::string content, thought;
  auto calls = ordered_json::array();
  for (const chat::MessagePart& part : parts) {
    if (part.kind == Kind::kText) {
      content += part.text;
    } else if (part.kind == Kind::kThought) {
      thought += part.text;
    } else if (part.kind == Kind::kCall) {
      calls.push_back({{"id", call_ids[static_cast<size_t>(part.call)]},
                       {"type", "function"},
                       {"function", {{"name", part.text}, {"arguments", ""}}}});
    } else {
      auto& arguments = calls.back()["function"]["arguments"].get_ref<std::string&>();
      arguments += part.text;
    }
  }
  ordered_json message{{"role", "assistant"}, {"content", content}};
  if (content.empty() && !calls.empty()) message["content"] = nullptr;
  if (!thought.empty()) message["reasoning_content"] = thought;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

}  // namespace sluice::serve
