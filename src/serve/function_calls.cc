#include "src/serve/function_calls.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/api_error.h"

namespace sluice::serve {

using nlohmann::ordered_json;

namespace {
[[noreturn]] void refuse(const char* field, const std::string& message) {
  throw ApiError{400, message, "", field, 0};
}

const ordered_json* given(const ordered_json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

ordered_json choice_of(const ordered_json& choice) {
  if (choice == "none" || choice == "auto") return choice;
  const ordered_json* name = choice.is_object() ? given(choice, "name") : nullptr;
  if (!name || !name->is_string())
    refuse("function_call", "function_call must be \"none\", \"auto\" or {\"name\": a function's}");
  return {{"type", "function"}, {"function", {{"name", *name}}}};
}

// Calls and their results in the order in which they come; a result belongs to the call before it.
class Messages {
 public:
  ordered_json read(const ordered_json& messages) {
    auto out = ordered_json::array();
    for (const ordered_json& message : messages) out.push_back(read_one(message));
    return out;
  }

 private:
  ordered_json read_one(const ordered_json& message) {
    if (!message.is_object()) return message;  // refused with all messages
    ordered_json out = message;
    const ordered_json* call = given(message, "function_call");
    out.erase("function_call");
    if (call) {
      const ordered_json* name = call->is_object() ? given(*call, "name") : nullptr;
      const ordered_json* arguments = call->is_object() ? given(*call, "arguments") : nullptr;
      if (!name || !name->is_string() || !arguments || !arguments->is_string())
        refuse("messages", "a message's function_call must have \"name\" and \"arguments\", texts");
      last_id_ = fmt::format("call{:05}", ++calls_);  // of nine letters and digits: Mistral's
      out["tool_calls"] =
          ordered_json::array({{{"id", last_id_},
                                {"type", "function"},
                                {"function", {{"name", *name}, {"arguments", *arguments}}}}});
      if (!out.contains("content")) out["content"] = nullptr;
    }
    if (const ordered_json* role = given(message, "role"); role && *role == "function") {
      if (last_id_.empty())
        refuse("messages", "a message of the role function answers no function_call before it");
      out["role"] = "tool";
      out["tool_call_id"] = last_id_;
    }
    return out;
  }

  int calls_ = 0;
  std::string last_id_;
};
}  // namespace

bool has_functions(const ordered_json& chat) {
  if (!chat.is_object()) return false;
  if (given(chat, "functions") || given(chat, "function_call")) return true;
  const ordered_json* messages = given(chat, "messages");
  if (!messages || !messages->is_array()) return false;
  for (const ordered_json& message : *messages)
    if (message.is_object() && (given(message, "function_call") ||
                                (given(message, "role") && message["role"] == "function")))
      return true;
  return false;
}

ordered_json with_tools(const ordered_json& chat) {
  ordered_json out = chat;
  const ordered_json* functions = given(chat, "functions");
  if (functions && given(chat, "tools"))
    refuse("functions", "functions and tools are two names of one thing; give the tools alone");
  out.erase("functions");
  out.erase("function_call");
  if (functions) {
    if (!functions->is_array()) refuse("functions", "functions must be a list of functions");
    auto tools = ordered_json::array();
    for (const ordered_json& function : *functions)
      tools.push_back({{"type", "function"}, {"function", function}});
    out["tools"] = std::move(tools);
    out["parallel_tool_calls"] = false;  // an answer has one
  }
  if (const ordered_json* choice = given(chat, "function_call"))
    out["tool_choice"] = choice_of(*choice);
  if (const ordered_json* messages = given(chat, "messages"); messages && messages->is_array())
    out["messages"] = Messages().read(*messages);
  return out;
}

ordered_json with_function_call(ordered_json message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->empty()) return message;
  ordered_json call = calls->front().at("function");
  message.erase("tool_calls");
  message["function_call"] = std::move(call);
  return message;
}

}  // namespace sluice::serve
