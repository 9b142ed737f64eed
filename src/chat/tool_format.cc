#include "src/chat/tool_format.h"

#include <fmt/format.h>

namespace sluice::chat {

namespace {
constexpr std::string_view kBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kKimiBegin = "<|tool_calls_section_begin|>";

constexpr ToolFormat kFormats[] = {
    {.name = "hermes",
     .trigger = "<tool_call>",
     .open = "\n",
     .head = R"({"name": ")",
     .middle = R"(", "arguments": )",
     .tail = "}",
     .between = {},
     .close = "\n</tool_call>",
     .next = "\n"},
    {.name = "qwen3_coder",
     .trigger = "<tool_call>",
     .open = "\n",
     .head = "<function=",
     .middle = ">\n",
     .tail = "</function>",
     .between = {},
     .close = "\n</tool_call>",
     .next = "\n",
     .is_json = false,
     .tagged = {.key_begin = "<parameter=",
                .key_end = ">",
                .after_key = {},
                .value_begin = {},
                .around = "\n",
                .value_end = "</parameter>",
                .after = "\n"}},
    {.name = "glm45",
     .trigger = "<tool_call>",
     .open = {},
     .head = {},
     .middle = "\n",
     .tail = {},
     .between = {},
     .close = "</tool_call>",
     .next = "\n",
     .is_json = false,
     .tagged = {.key_begin = "<arg_key>",
                .key_end = "</arg_key>",
                .after_key = "\n",
                .value_begin = "<arg_value>",
                .around = {},
                .value_end = "</arg_value>",
                .after = "\n"}},
    {.name = "glm47",
     .trigger = "<tool_call>",
     .open = {},
     .head = {},
     .middle = {},
     .tail = {},
     .between = {},
     .close = "</tool_call>",
     .next = {},
     .is_json = false,
     .tagged = {.key_begin = "<arg_key>",
                .key_end = "</arg_key>",
                .after_key = {},
                .value_begin = "<arg_value>",
                .around = {},
                .value_end = "</arg_value>",
                .after = {}}},
    {.name = "mistral",
     .trigger = "[TOOL_CALLS]",
     .open = " [",
     .head = R"({"name": ")",
     .middle = R"(", "arguments": )",
     .tail = "}",
     .between = ", ",
     .close = "]",
     .next = {},
     .is_json = true,
     .id_length = 9},
    {.name = "mistral_args",
     .trigger = "[TOOL_CALLS]",
     .open = {},
     .head = {},
     .middle = "[ARGS]",
     .tail = {},
     .between = {},
     .close = {},
     .next = {},
     .is_json = false,
     .id_length = 9},
    {.name = "llama3_json",
     .trigger = {},
     .open = {},
     .head = R"({"name": ")",
     .middle = R"(", "parameters": )",
     .tail = "}",
     .between = "; ",
     .close = {},
     .next = {}},
    {.name = "granite",
     .trigger = "<|tool_call|>",
     .open = "[",
     .head = R"({"name": ")",
     .middle = R"(", "arguments": )",
     .tail = "}",
     .between = ", ",
     .close = "]",
     .next = {}},
    {.name = "harmony",
     .trigger = "<|channel|>commentary to=functions.",
     .open = {},
     .head = {},
     .middle = " <|constrain|>json<|message|>",
     .tail = {},
     .between = {},
     .close = {},
     .next = "<|call|><|start|>assistant",
     .is_json = false,
     .has_channels = true},
    {.name = "deepseek_v3",
     .trigger = kBegin,
     .open = {},
     .head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .middle = "\n```json\n",
     .tail = "\n```<｜tool▁call▁end｜>",
     .between = "\n",
     .close = "<｜tool▁calls▁end｜>",
     .next = {},
     .is_json = false},
    {.name = "deepseek_v31",
     .trigger = kBegin,
     .open = {},
     .head = "<｜tool▁call▁begin｜>",
     .middle = "<｜tool▁sep｜>",
     .tail = "<｜tool▁call▁end｜>",
     .between = {},
     .close = "<｜tool▁calls▁end｜>",
     .next = {},
     .is_json = false,
     .is_list = true},
    {.name = "kimi_k2",
     .trigger = kKimiBegin,
     .open = {},
     .head = "<|tool_call_begin|>",
     .middle = "<|tool_call_argument_begin|>",
     .tail = "<|tool_call_end|>",
     .between = {},
     .close = "<|tool_calls_section_end|>",
     .next = {},
     .is_json = false,
     .is_list = true,
     .id_begin = "functions."},
};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
}  // namespace

const ToolFormat* find_tool_format(std::string_view name) {
  for (const ToolFormat& format : kFormats)
    if (format.name == name) return &format;
  return nullptr;
}

std::string numbered_call_id(const ToolFormat& format, std::string_view name, int64_t number) {
  return fmt::format("{}{}:{}", format.id_begin, name, number);
}

std::string_view name_in_call_id(const ToolFormat& format, std::string_view id) {
  std::string_view name = id.substr(0, id.find_last_not_of("0123456789") + 1);
  if (name.size() < id.size() && name.ends_with(':'))
    name.remove_suffix(1);
  else
    name = id;
  if (name.starts_with(format.id_begin)) name.remove_prefix(format.id_begin.size());
  return name;
}

std::vector<std::string> tool_format_names() {
  std::vector<std::string> out;
  for (const ToolFormat& format : kFormats) out.emplace_back(format.name);
  return out;
}

const ToolFormat* tool_format_of(const ChatTemplateSource& source) {
  const std::string& text = source.tools_text.empty() ? source.text : source.tools_text;
  if (!has(text, "tools")) return nullptr;
  const char* name =
      has_channels(source)         ? "harmony"
      : has(text, kKimiBegin)      ? "kimi_k2"
      : has(text, kBegin)          ? has(text, "```json") ? "deepseek_v3" : "deepseek_v31"
      : has(text, "[TOOL_CALLS]")  ? has(text, "[ARGS]") ? "mistral_args" : "mistral"
      : has(text, "<|tool_call|>") ? "granite"
      : has(text, "<tool_call>")
          // Some write their arguments in marks of their own between the same ones.
          ? has(text, "<function=") && has(text, "<parameter=") ? "qwen3_coder"
            : has(text, "<function=")                           ? ""
            : has(text, "</arg_key><arg_value>")                ? "glm47"
            : has(text, "<arg_key>")                            ? "glm45"
                                                                : "hermes"
          : has(text, "<|start_header_id|>") && has(text, R"("parameters": )") ? "llama3_json" : "";
  return find_tool_format(name);
}

bool has_channels(const ChatTemplateSource& source) {
  return has(source.text, "<|channel|>final<|message|>");
}

bool has_thoughts(const ChatTemplateSource& source) {
  return has(source.text, "<think>") || has(source.text, "</think>") || has_channels(source);
}

std::string tool_guide(const ToolFormat& format, const std::vector<Tool>& tools, ToolGuideUse use,
                       bool many, const ToolAlternative& otherwise) {
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();
  const bool has_numbers = !format.id_begin.empty();
  for (const Tool& tool : tools) {
    std::string head(format.head);
    head += format.id_begin;
    head += tool.name;
    if (!has_numbers) head += format.middle;
    calls.push_back({{"head", std::move(head)},
                     {"schema", tool.parameters},
                     {"strict", tool.is_strict},
                     {"tail", format.tail}});
    if (has_numbers) calls.back()["behind_number"] = format.middle;
  }
  nlohmann::ordered_json tagged;
  if (const TaggedArguments& of = format.tagged; !of.key_begin.empty())
    tagged = {{"key_begin", of.key_begin}, {"key_end", of.key_end},
              {"after_key", of.after_key}, {"value_begin", of.value_begin},
              {"around", of.around},       {"value_end", of.value_end},
              {"after", of.after}};
  nlohmann::ordered_json out{{"forced", use == ToolGuideUse::kForced},
                             {"many", many},
                             {"trigger", format.trigger},
                             {"open", format.open},
                             {"between", format.between},
                             {"list", format.is_list},
                             {"close", format.close},
                             {"next", format.next},
                             {"tagged", std::move(tagged)},
                             {"calls", std::move(calls)}};
  if (!otherwise.schema.empty())
    out["otherwise"] = {{"schema", nlohmann::ordered_json::parse(otherwise.schema)},
                        {"strict", otherwise.is_strict}};
  return out.dump();
}

}  // namespace sluice::chat
