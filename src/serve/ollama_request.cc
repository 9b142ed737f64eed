#include "src/serve/ollama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/jobs/request_fields.h"
#include "src/serve/json_text.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// Names of options, and of a chat's fields for them.
constexpr FieldName kOllamaNames[] = {{"max_tokens", "options.num_predict"},
                                      {"repetition_penalty", "options.repeat_penalty"},
                                      {"temperature", "options.temperature"},
                                      {"top_k", "options.top_k"},
                                      {"top_p", "options.top_p"},
                                      {"min_p", "options.min_p"},
                                      {"typical_p", "options.typical_p"},
                                      {"mirostat", "options.mirostat"},
                                      {"mirostat_tau", "options.mirostat_tau"},
                                      {"mirostat_eta", "options.mirostat_eta"},
                                      {"seed", "options.seed"},
                                      {"stop", "options.stop"},
                                      {"presence_penalty", "options.presence_penalty"},
                                      {"frequency_penalty", "options.frequency_penalty"},
                                      {"response_format", "format"},
                                      {"reasoning_effort", "think"}};

// Options about how fast the model runs, and where: the server was started with what holds.
constexpr std::string_view kOptionsOfLoading[] = {
    "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram"};

// Options that a chat has under the same name.
constexpr std::string_view kOptionsOfSampling[] = {
    "temperature",  "top_k",        "top_p", "min_p", "typical_p",        "mirostat",
    "mirostat_tau", "mirostat_eta", "seed",  "stop",  "presence_penalty", "frequency_penalty"};

constexpr size_t kMostCalls = 128;  // of a message: each result is looked for among them

// Ids for calls that have none: of nine letters and digits, as Mistral's templates want them.
std::string numbered_call(int number) { return fmt::format("call{:05}", number); }

/// An option that stands for something that is not here: only the value that asks for nothing.
void read_absent_option(const std::string& name, const ordered_json& value,
                        const OllamaModel& model) {
  const auto refuse_unless = [&](bool holds, const std::string& why) {
    if (!holds)
      pass_over_or_refuse("options",
                          fmt::format("options.{} is {}; {}", name, jobs::describe(value), why));
  };
  if (is_one_of(name, kOptionsOfLoading))
    return refuse_unless(value.is_number() || value.is_boolean(), "it must be a number or a flag");
  if (name == "num_ctx")
    return refuse_unless(
        value.is_number_integer() && value > 0 && value <= model.context_tokens,
        fmt::format("this server's context is {} tokens, and was set when it was started",
                    model.context_tokens));
  if (name == "repeat_last_n")
    return refuse_unless(value == -1, "the penalty is of all tokens, which is -1");
  if (name == "tfs_z")
    return refuse_unless(value == 1, "it is not there: 1 is, which changes nothing");
  if (name == "penalize_newline") return refuse_unless(value == true, "only true is there");
  pass_over_or_refuse("options",
                      fmt::format("options.{} is unknown; remove it if the answer does not need it",
                                  name.substr(0, 100)));
}

void read_options(const ordered_json& options, const OllamaModel& model, ordered_json& chat) {
  for (const auto& [name, value] : need_object("options", options).items()) {
    if (value.is_null()) continue;
    if (name == "num_predict") {
      // -1 and -2: until the answer ends, or the context is full.
      if (value != -1 && value != -2) chat["max_tokens"] = value;
    } else if (name == "repeat_penalty") {
      chat["repetition_penalty"] = value;
    } else if (is_one_of(name, kOptionsOfSampling)) {
      chat[name] = value;
    } else {
      read_absent_option(name, value, model);
    }
  }
}

// How long the model stays: where it is the only one, always, and only that it should go at once is
// not done. Where it may leave, the body was looked at before it came here.
void read_keep_alive(const ordered_json& value, const OllamaModel& model) {
  if (!value.is_number() && !value.is_string())
    refuse_field("keep_alive", fmt::format("keep_alive is {}; it must be a number or a string",
                                           jobs::describe(value)));
  const bool is_zero =
      value == 0 ||
      (value.is_string() && !value.empty() &&
       value.get_ref<const std::string&>().starts_with("0") &&
       value.get_ref<const std::string&>().find_first_of("123456789") == std::string::npos);
  if (is_zero && !model.leaves)
    pass_over_or_refuse("keep_alive",
                        "keep_alive is 0; this server's model stays until the server ends");
}

void read_format(const ordered_json& format, ordered_json& chat) {
  if (format == "") return;
  if (format == "json")
    chat["response_format"] = {{"type", "json_object"}};
  else if (format.is_object())
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", format}}}};
  else
    refuse_field("format", fmt::format("format is {}; it must be \"json\" or a JSON schema",
                                       jobs::describe(format)));
}

void read_think(const ordered_json& think, const OllamaModel& model, ordered_json& chat) {
  if (think != false && !model.has_thoughts)
    return pass_over_or_refuse("think",
                               "think is given, and the model's chat template knows no thoughts");
  if (think.is_boolean())
    chat["chat_template_kwargs"] = {{"enable_thinking", think}};
  else
    chat["reasoning_effort"] = need_text("think", think);
}

void refuse_images(const std::string& where, const ordered_json& object) {
  const ordered_json* images = find_value(object, "images");
  if (images && !(images->is_array() && images->empty()))
    refuse_unsupported("images", where + " has images: this server has no model for them");
}

// Fields of both. False: it is none of them.
bool read_ollama_common(const std::string& name, const ordered_json& value,
                        const OllamaModel& model, ordered_json& chat) {
  if (name == "model" || name == "stream")
    chat[name] = value;
  else if (name == "options")
    read_options(value, model, chat);
  else if (name == "format")
    read_format(value, chat);
  else if (name == "keep_alive")
    read_keep_alive(value, model);
  else if (name == "think")
    read_think(value, model, chat);
  else if (name == "logprobs")
    chat[name] = need_flag(name, value);
  else if (name == "top_logprobs")
    chat[name] = value;
  else
    return false;
  return true;
}

// How many go with each token counts only where they are asked for; a completion has one number
// for both.
void settle_logprobs(ordered_json& request, bool is_chat) {
  const bool wants = request.contains("logprobs") && request["logprobs"] == true;
  if (!wants || !is_chat) {
    const ordered_json top = request.value("top_logprobs", ordered_json(0));
    request.erase("top_logprobs");
    request.erase("logprobs");
    if (wants) request["logprobs"] = top;
  }
}

// Calls in messages have no ids there; a result belongs to the first call of its tool that has
// none.
class OllamaMessages {
 public:
  ordered_json read(const ordered_json& messages) {
    auto out = ordered_json::array();
    for (size_t i = 0; i < need_list("messages", messages).size(); ++i)
      out.push_back(read_one(fmt::format("messages[{}]", i), messages[i]));
    return out;
  }

 private:
  struct Waiting {
    std::string id, tool;
  };

  ordered_json read_one(const std::string& where, const ordered_json& message) {
    need_keys(where, need_object(where, message),
              {"role", "content", "thinking", "images", "tool_calls", "tool_name", "name",
               "tool_call_id"});
    refuse_images(where, message);
    ordered_json out{{"role", need_text_of(where, message, "role")}};
    const ordered_json* content = find_value(message, "content");
    out["content"] = content ? need_text(where + ".content", *content) : std::string();
    if (const ordered_json* thought = find_value(message, "thinking"))
      out["reasoning_content"] = need_text(where + ".thinking", *thought);
    if (const ordered_json* calls = find_value(message, "tool_calls")) {
      waiting_.clear();  // results follow their calls
      if (need_list(where + ".tool_calls", *calls).size() > kMostCalls)
        refuse_field("messages", fmt::format("{}.tool_calls has {} calls; at most {} are taken",
                                             where, calls->size(), kMostCalls));
      for (const ordered_json& call : *calls)
        out["tool_calls"].push_back(read_tool_call(where + ".tool_calls", call));
    }
    if (out["role"] == "tool") read_tool_result(where, message, out);
    return out;
  }

  ordered_json read_tool_call(const std::string& where, const ordered_json& call) {
    need_keys(where, need_object(where, call), {"id", "type", "function"});
    const ordered_json* function = find_value(call, "function");
    if (!function) refuse_field("messages", where + " has a call without \"function\"");
    need_keys(where, need_object(where, *function), {"index", "name", "description", "arguments"});
    const std::string& name = need_text_of(where, *function, "name");
    const ordered_json* arguments = find_value(*function, "arguments");
    const ordered_json* id = find_value(call, "id");
    waiting_.push_back({id ? need_text(where + ".id", *id) : numbered_call(++calls_), name});
    return {
        {"id", waiting_.back().id},
        {"type", "function"},
        {"function",
         {{"name", name}, {"arguments", arguments ? dump(need_object(where, *arguments)) : "{}"}}}};
  }

  void read_tool_result(const std::string& where, const ordered_json& message, ordered_json& out) {
    const ordered_json* tool = find_value(message, "tool_name");
    if (!tool) tool = find_value(message, "name");
    const ordered_json* id = find_value(message, "tool_call_id");
    if (tool) out["name"] = need_text(where + ".tool_name", *tool);
    if (id) out["tool_call_id"] = need_text(where + ".tool_call_id", *id);
    const auto call = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
      return id ? *id == one.id : !tool || *tool == one.tool;
    });
    if (call == waiting_.end()) return;
    out["tool_call_id"] = call->id;
    out["name"] = call->tool;
    waiting_.erase(call);
  }

  std::vector<Waiting>
      waiting_;  // of the last message with calls, those whose results have not come
  int calls_ = 0;
};

// Of a body without a prompt: only the model's name counts.
OllamaRequest request_to_load(const ordered_json& object) {
  OllamaRequest out;
  if (const ordered_json* name = find_value(object, "model"))
    out.chat.model = need_text("model", *name);
  return out;
}

OllamaRequest request_to_chat(const ordered_json& chat, const sampling::SamplingParams& defaults,
                              const OllamaModel& model) {
  OllamaRequest out;
  out.kind = OllamaRequest::Kind::kChat;
  out.chat = with_names(kOllamaNames, [&] { return read_chat(chat, defaults, model.vocab_size); });
  if (!out.chat.guide_field.empty()) out.chat.guide_field = "format";
  return out;
}

ordered_json streamed_by_default() { return {{"stream", true}}; }
}  // namespace

std::string without_tag(const std::string& name, const std::string& served) {
  if (name == served || !name.ends_with(kOllamaTag)) return name;
  return name.substr(0, name.size() - kOllamaTag.size());
}

ApiError in_ollama_words(ApiError error) { return renamed(std::move(error), kOllamaNames); }

OllamaRequest parse_ollama_chat(std::string_view body, const sampling::SamplingParams& defaults,
                                const OllamaModel& model) {
  const ordered_json object = parse_object(body);
  ordered_json chat = streamed_by_default();
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (name == "messages")
      chat["messages"] = OllamaMessages().read(value);
    else if (name == "tools")
      chat["tools"] = need_list(name, value);
    else if (!read_ollama_common(name, value, model, chat))
      refuse_unknown(name);
  }
  if (!chat.contains("messages") || chat["messages"].empty()) return request_to_load(object);
  settle_logprobs(chat, true);
  return request_to_chat(chat, defaults, model);
}

OllamaRequest parse_ollama_generate(std::string_view body, const sampling::SamplingParams& defaults,
                                    const OllamaModel& model) {
  const ordered_json object = parse_object(body);
  ordered_json chat = streamed_by_default();
  std::string prompt, system;
  bool is_raw = !model.has_template;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (name == "prompt")
      prompt = need_text(name, value);
    else if (name == "system")
      system = need_text(name, value);
    else if (name == "raw")
      is_raw = need_flag(name, value) || is_raw;
    else if (name == "images")
      refuse_images("the request", object);
    else if (!read_ollama_common(name, value, model, chat) &&
             !((name == "suffix" || name == "template") && value == "") &&
             !(name == "context" && value.is_array() && value.empty()))
      refuse_unknown(name);
  }
  if (prompt.empty()) return request_to_load(object);
  settle_logprobs(chat, !is_raw);
  if (is_raw) {
    if (!system.empty())
      refuse_field("system", model.has_template
                                 ? "system and raw are both given; keep one"
                                 : "system is given, and the model has no chat template");
    chat.erase("chat_template_kwargs");  // there is no template to tell
    chat["prompt"] = prompt;
    OllamaRequest out;
    out.kind = OllamaRequest::Kind::kPlain;
    out.plain =
        with_names(kOllamaNames, [&] { return read_completion(chat, defaults, model.vocab_size); });
    out.plain.fills_context = true;
    if (!out.plain.guide_field.empty()) out.plain.guide_field = "format";
    return out;
  }
  chat["messages"] = ordered_json::array();
  if (!system.empty()) chat["messages"].push_back({{"role", "system"}, {"content", system}});
  chat["messages"].push_back({{"role", "user"}, {"content", prompt}});
  return request_to_chat(chat, defaults, model);
}

}  // namespace sluice::serve
