#include "src/serve/anthropic_request.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "src/jobs/request_fields.h"
#include "src/serve/json_text.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr FieldName kAnthropicNames[] = {{"stop", "stop_sequences"},
                                         {"response_format", "output_config"},
                                         {"reasoning_effort", "output_config"},
                                         {"continue_final_message", "messages"}};

// Anthropic's fields that a chat request calls so too.
constexpr std::string_view kSameInMessages[] = {"model", "max_tokens", "temperature",
                                                "top_p", "top_k",      "stream"};

// Messages of blocks become messages of a chat. Turns of one role in a row are one turn.
class AnthropicMessages {
 public:
  void system(const ordered_json& value) {
    ordered_json content = texts_of("system", value);
    if (!content.empty()) out_.push_back({{"role", "system"}, {"content", std::move(content)}});
  }

  void read(const ordered_json& messages) {
    if (!messages.is_array() || messages.empty())
      refuse_field("messages", "messages must be a list of messages, and not empty");
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string where = fmt::format("messages[{}]", i);
      const ordered_json& message = need_object(where, messages[i]);
      need_keys(where, message, {"role", "content"});
      const std::string& role = need_text_of(where, message, "role");
      const ordered_json* content = find_value(message, "content");
      if (!content) refuse_field("messages", where + " has no \"content\"");
      if (role == "user")
        read_user(where + ".content", *content);
      else if (role == "assistant")
        read_assistant(where + ".content", *content);
      else if (role == "system")
        read_system_turn(where + ".content", *content);
      else
        refuse_field("messages", fmt::format("{}.role is \"{}\"; it must be user or assistant; "
                                             "what the system says goes into \"system\"",
                                             where, role.substr(0, 60)));
    }
  }

  /// The answer goes on with the last message.
  bool ends_with_assistant() const {
    return out_.back()["role"] == "assistant" && !out_.back().contains("tool_calls");
  }
  ordered_json take() { return std::move(out_); }

 private:
  static ordered_json blocks_of(const std::string& where, const ordered_json& content) {
    if (content.is_string()) return ordered_json::array({text_part(content)});
    for (const ordered_json& block : need_list(where, content))
      need_text_of(where, need_object(where, block), "type");
    return content;
  }
  static std::string text_of_block(const std::string& where, const ordered_json& block) {
    const std::string& kind = block["type"].get_ref<const std::string&>();
    if (kind != "text")
      refuse_unsupported(field_of(where),
                         fmt::format("{} has a block of the type {}; this server takes text here: "
                                     "it has no model for images or documents",
                                     where, kind.substr(0, 60)));
    need_keys(where, block, {"type", "text", "cache_control", "citations"});
    return need_text_of(where, block, "text");
  }
  // Nothing but text, as parts of a chat message.
  static ordered_json texts_of(const std::string& where, const ordered_json& content) {
    auto parts = ordered_json::array();
    for (const ordered_json& block : blocks_of(where, content))
      parts.push_back(text_part(text_of_block(where, block)));
    return parts;
  }

  // Before all else it is what "system" is. Later few templates have a place for it: it is the
  // user's, as programs that send such turns mean it.
  void read_system_turn(const std::string& where, const ordered_json& content) {
    const auto is_system = [](const ordered_json& message) { return message["role"] == "system"; };
    ordered_json parts = texts_of(where, content);
    const bool is_first = std::all_of(out_.begin(), out_.end(), is_system);
    for (ordered_json& part : parts)
      turn(is_first ? "system" : "user")["content"].push_back(std::move(part));
  }

  void read_user(const std::string& where, const ordered_json& content) {
    const ordered_json blocks = blocks_of(where, content);
    if (blocks.empty()) refuse_field("messages", where + " is empty");
    for (const ordered_json& block : blocks) {
      if (block["type"] == "tool_result")
        read_result(where, block);
      else
        turn("user")["content"].push_back(text_part(text_of_block(where, block)));
    }
  }

  // A chat has no word for a call that has failed: its text says so.
  void read_result(const std::string& where, const ordered_json& block) {
    need_keys(where, block, {"type", "tool_use_id", "content", "is_error", "cache_control"});
    const std::string& id = need_text_of(where, block, "tool_use_id");
    const auto call = called_.find(id);
    if (call == called_.end())
      refuse_field("messages", fmt::format("{} has the result of {}, which no tool_use before it "
                                           "has asked for",
                                           where, id.substr(0, 100)));
    ordered_json message{{"role", "tool"}, {"tool_call_id", id}, {"name", call->second}};
    const ordered_json* content = find_value(block, "content");
    auto parts = ordered_json::array();
    const ordered_json* failed = find_value(block, "is_error");
    if (failed && need_flag(where + ".is_error", *failed)) parts.push_back(text_part("Error:"));
    if (content)
      for (ordered_json& part : texts_of(where, *content)) parts.push_back(std::move(part));
    message["content"] = std::move(parts);
    out_.push_back(std::move(message));
  }

  void read_assistant(const std::string& where, const ordered_json& content) {
    const ordered_json blocks = blocks_of(where, content);
    if (blocks.empty()) refuse_field("messages", where + " is empty");
    for (const ordered_json& block : blocks) {
      if (block["type"] == "tool_use") {
        read_use(where, block);
      } else if (block["type"] == "redacted_thinking") {
        continue;  // thoughts that nobody can read
      } else if (block["type"] == "thinking") {
        need_keys(where, block, {"type", "thinking", "signature"});
        turn("assistant")["reasoning_content"] = need_text_of(where, block, "thinking");
      } else {
        const std::string text = text_of_block(where, block);
        // Nothing can be gone on with that has no text; answers of ours may have none.
        ordered_json& parts = turn("assistant")["content"];
        if (!text.empty()) parts.push_back(text_part(text));
      }
    }
  }

  void read_use(const std::string& where, const ordered_json& block) {
    need_keys(where, block, {"type", "id", "name", "input", "cache_control", "caller"});
    const std::string& id = need_text_of(where, block, "id");
    const std::string& name = need_text_of(where, block, "name");
    const ordered_json* input = find_value(block, "input");
    if (!input) refuse_field("messages", where + " has a tool_use without \"input\"");
    called_[id] = name;
    turn("assistant")["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", dump(need_object(where, *input))}}}});
  }

  // The turn under way, where it is the role's; a new one else.
  ordered_json& turn(const char* role) {
    if (out_.empty() || out_.back()["role"] != role)
      out_.push_back({{"role", role}, {"content", ordered_json::array()}});
    return out_.back();
  }

  ordered_json out_ = ordered_json::array();
  std::map<std::string, std::string> called_;  // tools by the ids of their calls
};

// {"name", "description", "input_schema"} as a chat request has functions.
ordered_json functions_of(const ordered_json& tools) {
  auto out = ordered_json::array();
  for (size_t i = 0; i < need_list("tools", tools).size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const ordered_json& tool = need_object(where, tools[i]);
    if (const ordered_json* kind = find_value(tool, "type"); kind && *kind != "custom") {
      pass_over_or_refuse("tools", fmt::format("{} is of the type {}; this server has no tools of "
                                               "its own: give tools with an input_schema",
                                               where, kind->dump().substr(0, 60)));
      continue;
    }
    need_keys(where, tool,
              {"type", "name", "description", "input_schema", "strict", "cache_control",
               "eager_input_streaming"});
    ordered_json function{{"name", need_text_of(where, tool, "name")}};
    if (const ordered_json* text = find_value(tool, "description"))
      function["description"] = need_text(where + ".description", *text);
    const ordered_json* schema = find_value(tool, "input_schema");
    if (!schema) refuse_field("tools", where + " has no \"input_schema\"");
    function["parameters"] = need_object(where + ".input_schema", *schema);
    if (const ordered_json* strict = find_value(tool, "strict")) function["strict"] = *strict;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_choice(const ordered_json& choice, ordered_json& chat) {
  const std::string& kind = need_text_of("tool_choice", need_object("tool_choice", choice), "type");
  need_keys("tool_choice", choice, {"type", "name", "disable_parallel_tool_use"});
  if (kind == "auto" || kind == "none")
    chat["tool_choice"] = kind;
  else if (kind == "any")
    chat["tool_choice"] = "required";
  else if (kind == "tool")
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", need_text_of("tool_choice", choice, "name")}}}};
  else
    refuse_field("tool_choice",
                 fmt::format("tool_choice.type is \"{}\"; it must be auto, any, tool or none",
                             kind.substr(0, 60)));
  if (const ordered_json* single = find_value(choice, "disable_parallel_tool_use"))
    chat["parallel_tool_calls"] = !need_flag("tool_choice.disable_parallel_tool_use", *single);
}

// What templates of models that think are told; "adaptive" is what they do by themselves.
void read_thinking(const ordered_json& thinking, ordered_json& chat) {
  const std::string& kind = need_text_of("thinking", need_object("thinking", thinking), "type");
  if (kind == "enabled" && find_value(thinking, "budget_tokens"))
    pass_over_or_refuse("thinking",
                        "thinking.budget_tokens can't be kept here: where the model thinks, "
                        "{\"type\": \"adaptive\"} lets it");
  if (kind != "disabled" && kind != "adaptive" && kind != "enabled")
    refuse_field("thinking",
                 fmt::format("thinking.type is \"{}\"; it must be adaptive, enabled or disabled",
                             kind.substr(0, 60)));
  need_keys("thinking", thinking, {"type", "budget_tokens", "display"});
  if (kind != "adaptive") chat["chat_template_kwargs"]["enable_thinking"] = kind == "enabled";
}

void read_output_config(const ordered_json& config, ordered_json& chat) {
  need_keys("output_config", need_object("output_config", config), {"format", "effort"});
  if (const ordered_json* effort = find_value(config, "effort")) chat["reasoning_effort"] = *effort;
  const ordered_json* format = find_value(config, "format");
  if (!format) return;
  need_keys("output_config.format", need_object("output_config.format", *format),
            {"type", "schema"});
  const ordered_json* schema = find_value(*format, "schema");
  if (find_value(*format, "type") == nullptr || (*format)["type"] != "json_schema" || !schema)
    refuse_field("output_config",
                 "output_config.format must be {\"type\": \"json_schema\", \"schema\": {...}}");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *schema}}}};
}

// Fields that change nothing here with the value that is taken. False: it is none of them.
bool is_neutral_in_messages(const std::string& name, const ordered_json& value) {
  const auto refuse_unless = [&](bool holds) {
    if (!holds)
      pass_over_or_refuse(
          name, fmt::format("{} is {}; it is not supported here", name, jobs::describe(value)));
    return true;
  };
  if (name == "metadata" || name == "cache_control") {
    need_object(name, value);
    return true;
  }
  if (name == "service_tier") return refuse_unless(value == "auto" || value == "standard_only");
  if (name == "speed") return refuse_unless(value == "standard");
  return false;
}
}  // namespace

ApiError in_anthropic_words(ApiError error) { return renamed(std::move(error), kAnthropicNames); }

ChatRequest parse_messages(std::string_view body, const sampling::SamplingParams& defaults,
                           int64_t vocab_size, MessagesUse use) {
  const ordered_json object = parse_object(body);
  ordered_json chat = ordered_json::object();
  AnthropicMessages messages;
  // In front of the messages, wherever it is written.
  if (const ordered_json* text = find_value(object, "system")) messages.system(*text);
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || name == "system" || name == "thinking") continue;
    if (name == "messages") {
      messages.read(value);
    } else if (name == "stop_sequences") {
      chat["stop"] = need_list(name, value);
    } else if (name == "tools") {
      chat["tools"] = functions_of(value);
    } else if (name == "tool_choice") {
      read_choice(value, chat);
    } else if (name == "output_config") {
      read_output_config(value, chat);
    } else if (is_one_of(name, kSameInMessages) || is_own_field(name)) {
      chat[name] = value;
    } else if (!is_neutral_in_messages(name, value)) {
      refuse_unknown(name);
    }
  }
  if (!find_value(object, "messages")) refuse_field("messages", "messages is missing");
  if (use == MessagesUse::kAnswer && !find_value(object, "max_tokens"))
    refuse_field("max_tokens", "max_tokens is missing: give how many tokens an answer may have");
  if (const ordered_json* thinking = find_value(object, "thinking")) {
    if (const ordered_json* variables = find_value(chat, "chat_template_kwargs"))
      need_object("chat_template_kwargs", *variables);
    read_thinking(*thinking, chat);
  }
  if (messages.ends_with_assistant()) chat["continue_final_message"] = true;
  chat["messages"] = messages.take();
  ChatRequest out =
      with_names(kAnthropicNames, [&] { return read_chat(chat, defaults, vocab_size); });
  if (!out.guide_field.empty()) out.guide_field = "output_config";
  return out;
}

}  // namespace sluice::serve
