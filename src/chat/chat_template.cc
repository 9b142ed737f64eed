#include "src/chat/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::chat {

namespace {
using nlohmann::ordered_json;

// "</s>", or {"content": "</s>", ...}.
std::string token_text(const ordered_json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return {};
}

// A text, or a list of {"name", "template"}.
void read_templates(const ordered_json& value, ChatTemplateSource& out) {
  if (value.is_string()) {
    out.text = value.get<std::string>();
    return;
  }
  if (!value.is_array()) return;
  for (const ordered_json& one : value) {
    if (!one.is_object() || !one.contains("name") || !one.contains("template") ||
        !one["template"].is_string())
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: \"chat_template\" is a list of something else than "
                              "{{\"name\", \"template\"}}",
                              out.origin),
                  "take the tokenizer's files from the model's own repository again");
    if (one["name"] == "default") out.text = one["template"].get<std::string>();
    if (one["name"] == "tool_use") out.tools_text = one["template"].get<std::string>();
  }
}

Template parse(const std::string& text, const std::string& origin) {
  try {
    return Template(text);
  } catch (const TemplateError& error) {
    throw Error(ErrorKind::kFile, fmt::format("{}: the chat template: {}", origin, error.what()),
                "give another (`chat_template`)");
  }
}
}  // namespace

namespace {
void read_config(std::string_view text, ChatTemplateSource& out) {
  const ordered_json config = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    throw Error(ErrorKind::kFile, fmt::format("{}: is no JSON object", out.origin),
                "take the tokenizer's files from the model's own repository again");
  out.bos_token = token_text(config, "bos_token");
  out.eos_token = token_text(config, "eos_token");
  if (config.contains("chat_template")) read_templates(config["chat_template"], out);
}
}  // namespace

std::optional<ChatTemplateSource> read_chat_template(std::string_view tokenizer_config,
                                                     const std::string& origin) {
  ChatTemplateSource out;
  out.origin = origin;
  read_config(tokenizer_config, out);
  if (out.text.empty()) return std::nullopt;
  return out;
}

std::optional<ChatTemplateSource> find_chat_template(const std::filesystem::path& folder) {
  ChatTemplateSource out;
  const auto config_path = folder / "tokenizer_config.json";
  out.origin = config_path.string();
  if (const auto text = read_file_if_there(config_path, kMostTokenizerBytes))
    read_config(*text, out);
  const auto template_path = folder / "chat_template.jinja";
  if (auto text = read_file_if_there(template_path, kMostSettingsBytes)) {
    out.text = std::move(*text);
    out.origin = template_path.string();
  }
  if (out.text.empty()) return std::nullopt;
  return out;
}

ChatTemplate::ChatTemplate(ChatTemplateSource source)
    : source_(std::move(source)), template_(parse(source_.text, source_.origin)) {
  if (!source_.tools_text.empty()) tools_template_ = parse(source_.tools_text, source_.origin);
}

std::string ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                 bool adds_generation_prompt, const ordered_json& variables) const {
  Dict names;
  if (variables.is_object())
    for (const auto& [name, value] : variables.items()) names.set(name, Value::from_json(value));
  const bool has_tools = tools.is_array() && !tools.empty();
  names.set("messages", Value::from_json(messages));
  names.set("tools", has_tools ? Value::from_json(tools) : Value(None{}));
  if (!names.find("documents")) names.set("documents", None{});
  names.set("add_generation_prompt", adds_generation_prompt);
  names.set("bos_token", source_.bos_token);
  names.set("eos_token", source_.eos_token);
  try {
    return (has_tools && tools_template_ ? *tools_template_ : template_).render(names);
  } catch (const TemplateRefusal& refusal) {
    throw Error(ErrorKind::kUser,
                fmt::format("the model's chat template refuses: {}", refusal.what()),
                "change the messages as it asks");
  } catch (const TemplateError& error) {
    // Of these messages, and told to whoever sent them, who knows nothing of this machine's files.
    throw Error(
        ErrorKind::kUser,
        fmt::format("the model's chat template does not take these messages: {}", error.what()),
        "check that the messages have the form it expects, or give another template");
  }
}

}  // namespace sluice::chat
