#include "src/serve/chat_prompt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/chat/numbered_calls.h"
#include "src/jobs/bounded_json.h"
#include "src/jobs/request_fields.h"
#include "src/jobs/wishes.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr int kMostArgumentDepth = 64;

// Arguments of calls in earlier messages, which are JSON in a text, become JSON: as most templates
// take them. False: there are none.
bool open_arguments(ordered_json& messages) {
  bool has_some = false;
  for (ordered_json& message : messages) {
    if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) continue;
    for (ordered_json& call : message["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
          !call["function"].contains("arguments") || !call["function"]["arguments"].is_string())
        continue;
      ordered_json& arguments = call["function"]["arguments"];
      try {
        auto opened = jobs::parse_bounded<ordered_json>(arguments.get_ref<const std::string&>(),
                                                        kMostArgumentDepth, "arguments");
        if (!opened.is_object()) continue;
        arguments = std::move(opened);
        has_some = true;
      } catch (const jobs::Refusal&) {
        // Not JSON: shown to the template as it is.
      }
    }
  }
  return has_some;
}

// Parts of text become one text, as templates expect it that know no parts.
std::string text_of(const ordered_json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const ordered_json& part : content)
    text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
  return text;
}

bool ends_in_thought(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with("<think>");
}

// A text that an answer goes on with may have begun a thought.
bool is_in_thought(std::string_view text) {
  const size_t begun = text.rfind("<think>");
  const size_t ended = text.rfind("</think>");
  return begun != std::string_view::npos && (ended == std::string_view::npos || ended < begun);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// What no message has, to see where a template puts the last one.
constexpr std::string_view kMark = "\uE000\uE001\uE000";

// The prompt up to the end of its last message, which is not ended. Templates may take the space
// around a message away. `marked`: the prompt with a mark behind that message.
std::string cut_after(std::string prompt, std::string_view last, std::string_view marked) {
  const std::string_view kept = trimmed(last);
  const size_t mark = marked.rfind(kMark);
  const size_t length = last.size() - last.find(kept);
  const size_t most =
      mark != std::string_view::npos && mark >= length ? mark - length : std::string::npos;
  const size_t at = kept.empty() ? std::string::npos : prompt.rfind(kept, most);
  if (at == std::string::npos)
    throw ApiError{400,
                   "the chat template changes the last message, so that continue_final_message "
                   "does not find it in the prompt",
                   "", "continue_final_message", 0};
  const std::string_view from_text = last.substr(last.size() - length);
  const bool has_all = std::string_view(prompt).substr(at).starts_with(from_text);
  prompt.resize(at + (has_all ? from_text : kept).size());
  return prompt;
}

// What the template is told beside the messages. A hint that it does not read is refused where it
// would change the answer elsewhere; how wordy an answer is, models are told in other ways.
ordered_json variables_of(const ChatRequest& request, const chat::ChatTemplate& chat) {
  ordered_json out = request.variables.is_object() ? request.variables : ordered_json::object();
  if (!request.documents.is_null()) {
    if (!chat.mentions("documents"))
      throw ApiError{400,
                     "documents are given, and the model's chat template does not show them; put "
                     "their text into a message",
                     "unsupported", "documents", 0};
    out["documents"] = request.documents;
  }
  for (const auto& [name, value] : request.hints) {
    const bool is_read = chat.mentions(name);
    if (!is_read && name == "reasoning_effort") {
      // Templates that think or do not, and know no more.
      if (value == "none" && chat.mentions("enable_thinking")) {
        out.emplace("enable_thinking", false);
        continue;
      }
      const char* why =
          "reasoning_effort is given, and the model's chat template does not know it; leave it out";
      if (!jobs::Wishes::pass_over(why)) throw ApiError{400, why, "unsupported", name, 0};
    }
    if (is_read && !out.contains(name)) out[name] = value;
  }
  return out;
}

// Templates with channels call thoughts of earlier turns otherwise, and take none beside a text
// where there are calls.
void rename_thoughts(ordered_json& messages) {
  for (ordered_json& message : messages) {
    const auto thought = message.find("reasoning_content");
    if (thought == message.end() || !thought->is_string() || message.contains("thinking")) continue;
    const bool has_text =
        message.contains("content") && message["content"].is_string() && message["content"] != "";
    if (!(has_text && message.contains("tool_calls"))) message["thinking"] = *thought;
  }
}

// The request's own in place of the model's.
std::optional<chat::ChatTemplate> own_template(const ChatRequest& request,
                                               const chat::ChatTemplate* chat) {
  if (request.chat_template.empty()) return std::nullopt;
  chat::ChatTemplateSource source;
  if (chat) source = chat->source();
  source.text = request.chat_template;
  source.tools_text.clear();
  source.origin = "chat_template";
  try {
    return chat::ChatTemplate(std::move(source));
  } catch (const Error& error) {
    throw ApiError{400, error.text(), "", "chat_template", 0};
  }
}

std::string render(const ChatRequest& request, const chat::ChatTemplate* chat) {
  if (!chat)
    throw ApiError{
        400,
        "the model has no chat template: send the finished text to /v1/completions, or start "
        "the server with one",
        "", "messages", 0};
  ordered_json messages = request.messages;
  for (ordered_json& message : messages) {
    const auto content = message.find("content");
    if (content != message.end() && content->is_array()) *content = text_of(*content);
  }
  if (chat::has_channels(chat->source())) rename_thoughts(messages);
  const ordered_json variables = variables_of(request, *chat);
  const auto rendered_with = [&](const ordered_json& with, const ordered_json& tools) {
    return chat->render(with, tools, request.adds_generation_prompt, variables);
  };
  const auto rendered = [&](const ordered_json& with) {
    return rendered_with(with, request.tools);
  };
  try {
    ordered_json opened = messages;
    if (!open_arguments(opened)) return rendered(messages);
    try {
      return rendered(opened);
    } catch (const Error&) {
      return rendered(messages);  // a few templates take the arguments as text
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUser) throw;
    const char* param = "messages";
    try {
      if (!request.tools.is_null() && !rendered_with(messages, nullptr).empty()) param = "tools";
    } catch (const Error&) {
      // The messages alone are enough to break it.
    }
    throw ApiError{400, error.text(), "", param, 0};
  }
}

// Where tools may be called, the output is guided once a call has begun; where one must be, the
// prompt begins it.
void offer_tools(const ChatRequest& call, const chat::ToolFormat* format,
                 const text::Tokenizer& tokenizer, ChatPrompt& out) {
  if (!format)
    throw ApiError{400,
                   "the model's chat template shows it no tools in a form that is known here; name "
                   "the form when the server is started, or add \"tool_choice\": \"none\"",
                   "", "tools", 0};
  out.form.calls = format;
  for (const chat::Tool& tool : call.callable) {
    out.form.names.push_back(tool.name);
    if (!format->tagged.key_begin.empty()) out.form.parameters[tool.name] = tool.parameters;
  }
  out.form.begins_in_call = call.must_call;
  if (call.must_call) {
    if (std::exchange(out.form.begins_in_thought, false)) out.text += "\n</think>\n\n";
    out.text += format->trigger;
  }
  chat::ToolAlternative otherwise;
  if (call.params.guide.kind == sampling::GuideKind::kJson)
    otherwise = {R"({"type":"object"})", false};
  else if (call.params.guide.kind == sampling::GuideKind::kJsonSchema)
    otherwise = {call.params.guide.text, !call.params.guide.relaxes};
  out.guide = {
      sampling::GuideKind::kCalls,
      chat::tool_guide(*format, call.callable,
                       call.must_call ? chat::ToolGuideUse::kForced : chat::ToolGuideUse::kOffered,
                       call.calls_many, otherwise),
      {}};
  const auto trigger = tokenizer.encode(format->trigger, text::AddSpecial::kNo);
  out.keeps_special = std::any_of(trigger.begin(), trigger.end(),
                                  [&](int32_t id) { return tokenizer.is_special(id); });
}
// An answer in channels; one that is guided, or goes on with the last message, is in one of them.
void begin_channels(const ChatRequest& request, ChatPrompt& out) {
  const bool is_guided = request.params.guide.kind != sampling::GuideKind::kNone;
  if (request.continues_last) return;
  if (is_guided) {
    out.text += "<|channel|>final<|message|>";
    return;
  }
  out.form.has_channels = true;
  out.keeps_special = true;
}
}  // namespace

void refuse_own_template(const ChatRequest& request) {
  if (request.chat_template.empty()) return;
  throw ApiError{
      400,
      "chat_template is given, and this server takes no templates from its callers; leave "
      "it out, or ask whoever runs the server to allow it",
      "unsupported", "chat_template", 0};
}

ChatPrompt chat_prompt(const ChatRequest& asked, const chat::ChatTemplate* chat,
                       const text::Tokenizer& tokenizer, const chat::ToolFormat* tools,
                       bool splits_thoughts) {
  ChatPrompt out;
  std::optional<ChatRequest> numbered;
  if (tools && !tools->id_begin.empty()) {
    numbered = asked;
    out.form.calls_before = chat::number_calls(*tools, numbered->messages);
  }
  const ChatRequest& request = numbered ? *numbered : asked;
  const auto own = own_template(request, chat);
  if (own) chat = &*own;
  out.text = render(request, chat);
  std::string last;
  if (request.continues_last) {
    last = text_of(request.messages.back()["content"]);
    ChatRequest marked = request;
    marked.messages.back()["content"] = last + std::string(kMark);
    out.text = cut_after(std::move(out.text), last, render(marked, chat));
  }
  // A guided answer is what was asked for, from its first character on.
  out.form.has_thoughts =
      splits_thoughts && request.params.guide.kind == sampling::GuideKind::kNone;
  out.form.begins_in_thought =
      out.form.has_thoughts && (ends_in_thought(out.text) || is_in_thought(last));
  if (!request.callable.empty()) offer_tools(request, tools, tokenizer, out);
  if (chat && chat::has_channels(chat->source()) && request.adds_generation_prompt)
    begin_channels(request, out);
  return out;
}

}  // namespace sluice::serve
