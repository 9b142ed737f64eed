#include "src/serve/responses_request.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "src/jobs/request_fields.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr FieldName kResponsesNames[] = {{"messages", "input"},
                                         {"max_tokens", "max_output_tokens"},
                                         {"response_format", "text"},
                                         {"reasoning_effort", "reasoning"},
                                         {"verbosity", "text"}};

// Fields of a chat request that are called so here too; the last two are not OpenAI's here.
constexpr std::string_view kSameInResponses[] = {"model",
                                                 "stream",
                                                 "temperature",
                                                 "top_p",
                                                 "parallel_tool_calls",
                                                 "user",
                                                 "metadata",
                                                 "safety_identifier",
                                                 "service_tier",
                                                 "prompt_cache_key",
                                                 "prompt_cache_retention",
                                                 "top_k",
                                                 "stop"};
// What the answer repeats as it came.
constexpr std::string_view kRepeated[] = {"instructions",
                                          "tools",
                                          "tool_choice",
                                          "text",
                                          "metadata",
                                          "reasoning",
                                          "max_output_tokens",
                                          "user",
                                          "parallel_tool_calls",
                                          "safety_identifier",
                                          "prompt_cache_key"};

// Items become messages. What an assistant did in a row (thoughts, a text, calls) is one message.
class ResponsesItems {
 public:
  void instructions(const std::string& text) { add_system(ordered_json::array({text_part(text)})); }

  void read(const ordered_json& input) {
    if (input.is_string()) {
      add({{"role", "user"}, {"content", input}});
      return;
    }
    if (!input.is_array() || input.empty())
      refuse_field("input", "input must be a string, or a list of items that is not empty");
    for (size_t i = 0; i < input.size(); ++i) read_item(fmt::format("input[{}]", i), input[i]);
  }
  ordered_json take() { return std::move(messages_); }

 private:
  void read_item(const std::string& where, const ordered_json& item) {
    need_object(where, item);
    const ordered_json* type = find_value(item, "type");
    const std::string kind = type ? need_text(where + ".type", *type) : "message";
    if (kind == "message")
      read_message_item(where, item);
    else if (kind == "function_call")
      read_call(where, item);
    else if (kind == "function_call_output")
      read_output(where, item);
    else if (kind == "reasoning")
      read_thought(where, item);
    else if (kind == "item_reference")
      refuse_unsupported("input", where + " is of the type item_reference: no items are kept here");
    else
      pass_over_or_refuse(
          "input", fmt::format("{} is of the type {}; this server takes message, function_call, "
                               "function_call_output and reasoning",
                               where, kind.substr(0, 60)));
  }

  // A text, or parts of text.
  static ordered_json content_of(const std::string& where, const ordered_json& content) {
    if (content.is_string()) return ordered_json::array({text_part(content)});
    if (!content.is_array() || content.empty())
      refuse_field("input",
                   where + " must be a string, or a list of parts of text that is not empty");
    auto parts = ordered_json::array();
    for (const ordered_json& part : content) {
      const std::string& kind = need_text_of(where, need_object(where, part), "type");
      if (kind != "input_text" && kind != "output_text" && kind != "text")
        refuse_unsupported("input", fmt::format("{} has a part of the type {}; this server takes "
                                                "parts of text: it has no model for images, sound "
                                                "or files",
                                                where, kind.substr(0, 60)));
      need_keys(where, part, {"type", "text", "annotations", "logprobs"});
      parts.push_back(text_part(need_text_of(where, part, "text")));
    }
    return parts;
  }

  void read_message_item(const std::string& where, const ordered_json& item) {
    need_keys(where, item, {"type", "role", "content", "id", "status", "phase"});
    const std::string& role = need_text_of(where, item, "role");
    const ordered_json* content = find_value(item, "content");
    if (!content) refuse_field("input", where + " has no \"content\"");
    ordered_json parts = content_of(where + ".content", *content);
    if (role == "system" || role == "developer") {
      add_system(std::move(parts));
    } else if (role == "assistant") {
      ordered_json& message = assistant(!may_take_text());
      message["content"] = std::move(parts);
    } else if (role == "user") {
      add({{"role", "user"}, {"content", std::move(parts)}});
    } else {
      refuse_field("input", fmt::format("{}.role is \"{}\"; it must be user, assistant, system or "
                                        "developer",
                                        where, role.substr(0, 60)));
    }
  }

  void read_call(const std::string& where, const ordered_json& item) {
    need_keys(where, item, {"type", "id", "call_id", "name", "arguments", "status"});
    const std::string& id = need_text_of(where, item, "call_id");
    const std::string& name = need_text_of(where, item, "name");
    const std::string& arguments = need_text_of(where, item, "arguments");
    called_[id] = name;
    ordered_json& message = assistant(false);
    message["tool_calls"].push_back({{"id", id},
                                     {"type", "function"},
                                     {"function", {{"name", name}, {"arguments", arguments}}}});
  }

  void read_output(const std::string& where, const ordered_json& item) {
    need_keys(where, item, {"type", "id", "call_id", "output", "status"});
    const std::string& id = need_text_of(where, item, "call_id");
    const auto call = called_.find(id);
    if (call == called_.end())
      refuse_field("input", fmt::format("{} answers the call {}, which no function_call before it "
                                        "has made",
                                        where, id.substr(0, 100)));
    const ordered_json* output = find_value(item, "output");
    if (!output) refuse_field("input", where + " has no \"output\"");
    add({{"role", "tool"},
         {"tool_call_id", id},
         {"name", call->second},
         {"content", content_of(where + ".output", *output)}});
  }

  void read_thought(const std::string& where, const ordered_json& item) {
    need_keys(where, item, {"type", "id", "summary", "content", "status"});
    std::string thought;
    for (const char* key : {"content", "summary"}) {
      const ordered_json* parts = find_value(item, key);
      if (!parts || !thought.empty()) continue;
      for (const ordered_json& part : need_list(where + "." + key, *parts))
        thought += need_text_of(where + "." + key, need_object(where, part), "text");
    }
    if (!thought.empty()) assistant(true)["reasoning_content"] = thought;
  }

  // The message that the assistant's last items are; a new one when they are others', or `begins`.
  ordered_json& assistant(bool begins) {
    const bool goes_on = !messages_.empty() && messages_.back()["role"] == "assistant";
    if (!goes_on || begins) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    return messages_.back();
  }
  bool may_take_text() const {
    return !messages_.empty() && messages_.back()["role"] == "assistant" &&
           messages_.back()["content"] == "" && !messages_.back().contains("tool_calls");
  }
  // Most templates know one system message, in front.
  void add_system(ordered_json parts) {
    if (!messages_.empty() && messages_.back()["role"] == "system") {
      for (ordered_json& part : parts) messages_.back()["content"].push_back(std::move(part));
      return;
    }
    add({{"role", "system"}, {"content", std::move(parts)}});
  }
  void add(ordered_json message) { messages_.push_back(std::move(message)); }

  ordered_json messages_ = ordered_json::array();
  std::map<std::string, std::string> called_;  // functions by the ids of their calls
};

// {"type": "function", "name": ..., "parameters": ...} as a chat request nests it.
ordered_json nested_tools(const ordered_json& tools) {
  auto out = ordered_json::array();
  for (size_t i = 0; i < need_list("tools", tools).size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const ordered_json& tool = need_object(where, tools[i]);
    const std::string& kind = need_text_of(where, tool, "type");
    if (kind != "function") {
      pass_over_or_refuse("tools", fmt::format("{} is of the type {}; this server has no tools of "
                                               "its own: only functions can be given",
                                               where, kind.substr(0, 60)));
      continue;
    }
    need_keys(where, tool, {"type", "name", "description", "parameters", "strict"});
    ordered_json function = ordered_json::object();
    for (const auto& [key, value] : tool.items())
      if (key != "type" && !value.is_null()) function[key] = value;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

ordered_json nested_choice(const ordered_json& choice) {
  if (choice.is_string()) return choice;
  const std::string& kind = need_text_of("tool_choice", need_object("tool_choice", choice), "type");
  if (kind == "allowed_tools") return choice;
  if (kind != "function")
    refuse_unsupported("tool_choice",
                       fmt::format("tool_choice is of the type {}; it is \"none\", \"auto\", "
                                   "\"required\" or {{\"type\": \"function\", \"name\": ...}}",
                                   kind.substr(0, 60)));
  need_keys("tool_choice", choice, {"type", "name"});
  return {{"type", "function"},
          {"function", {{"name", need_text_of("tool_choice", choice, "name")}}}};
}

void read_text(const ordered_json& text, ordered_json& chat) {
  need_keys("text", need_object("text", text), {"format", "verbosity"});
  if (const ordered_json* verbosity = find_value(text, "verbosity")) chat["verbosity"] = *verbosity;
  const ordered_json* format = find_value(text, "format");
  if (!format) return;
  const std::string& kind =
      need_text_of("text.format", need_object("text.format", *format), "type");
  if (kind != "json_schema") {
    need_keys("text.format", *format, {"type"});
    chat["response_format"] = *format;
    return;
  }
  need_keys("text.format", *format, {"type", "name", "description", "schema", "strict"});
  ordered_json schema = *format;
  schema.erase("type");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void read_reasoning(const ordered_json& reasoning, ordered_json& chat) {
  need_keys("reasoning", need_object("reasoning", reasoning),
            {"effort", "summary", "generate_summary"});
  if (const ordered_json* effort = find_value(reasoning, "effort"))
    chat["reasoning_effort"] = *effort;
  for (const char* key : {"summary", "generate_summary"})
    if (const ordered_json* summary = find_value(reasoning, key); summary && *summary != "auto")
      pass_over_or_refuse("reasoning",
                          fmt::format("reasoning.{} is {}; no summaries are made here: "
                                      "thoughts are answered as they are",
                                      key, jobs::describe(*summary)));
}

// Fields that stand for something that is not here: only the value that asks for nothing is taken.
// False: it is none of them.
bool read_absent(const std::string& name, const ordered_json& value) {
  const auto refuse_unless = [&](bool holds, const char* why) {
    if (!holds)
      refuse_unsupported(name, fmt::format("{} is {}; {}", name, jobs::describe(value), why));
    return true;
  };
  const auto pass_over_unless = [&](bool holds, const char* why) {
    if (!holds)
      pass_over_or_refuse(name, fmt::format("{} is {}; {}", name, jobs::describe(value), why));
    return true;
  };
  if (name == "store")
    return pass_over_unless(value == false, "no answers are kept here: leave it out, or say false");
  if (name == "background")
    return refuse_unless(value == false, "no answers are kept here to be fetched later");
  if (name == "previous_response_id" || name == "conversation")
    return refuse_unless(false, "no answers are kept here: send the earlier items in \"input\"");
  if (name == "prompt") return refuse_unless(false, "no prompts are kept here: send its text");
  if (name == "include")
    return pass_over_unless(value.is_array() && value.empty(),
                            "nothing can be added to the answer");
  if (name == "truncation")
    return pass_over_unless(value == "disabled", "items are not dropped; shorten the input");
  if (name == "top_logprobs") return pass_over_unless(value == 0, "it is not supported here");
  if (name == "stream_options") {
    need_keys(name, need_object(name, value), {"include_obfuscation"});
    if (const ordered_json* obfuscates = find_value(value, "include_obfuscation"))
      need_flag("stream_options.include_obfuscation", *obfuscates);
    return true;
  }
  return false;
}
}  // namespace

ApiError in_responses_words(ApiError error) { return renamed(std::move(error), kResponsesNames); }

ResponsesRequest parse_responses(std::string_view body, const sampling::SamplingParams& defaults,
                                 int64_t vocab_size) {
  const ordered_json object = parse_object(body);
  ordered_json chat = ordered_json::object();
  ResponsesItems items;
  // In front of the items, wherever it is written.
  if (const ordered_json* text = find_value(object, "instructions"))
    items.instructions(need_text("instructions", *text));
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || name == "instructions") continue;
    if (name == "input") {
      items.read(value);
    } else if (name == "max_output_tokens") {
      chat["max_tokens"] = value;
    } else if (name == "tools") {
      chat["tools"] = nested_tools(value);
    } else if (name == "tool_choice") {
      chat["tool_choice"] = nested_choice(value);
    } else if (name == "text") {
      read_text(value, chat);
    } else if (name == "reasoning") {
      read_reasoning(value, chat);
    } else if (is_one_of(name, kSameInResponses) || is_own_field(name)) {
      chat[name] = value;
    } else if (!read_absent(name, value)) {
      refuse_unknown(name);
    }
  }
  if (!find_value(object, "input")) refuse_field("input", "input is missing");
  chat["messages"] = items.take();
  ResponsesRequest out;
  out.chat = with_names(kResponsesNames, [&] { return read_chat(chat, defaults, vocab_size); });
  if (!out.chat.guide_field.empty()) out.chat.guide_field = "text";
  out.echo = ordered_json::object();
  for (std::string_view name : kRepeated)
    if (const ordered_json* value = find_value(object, name)) out.echo[std::string(name)] = *value;
  return out;
}

}  // namespace sluice::serve
