#include "src/serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "src/base/error.h"
#include "src/jobs/bounded_json.h"
#include "src/jobs/request_fields.h"
#include "src/jobs/wishes.h"
#include "src/serve/function_calls.h"
#include "src/serve/json_text.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using jobs::Refusal;
using nlohmann::ordered_json;
using json = ordered_json;  // properties of schemas come in their order
using sampling::SamplingParams;

constexpr int kMostDepth = 64;  // of JSON: tools bring schemas
constexpr size_t kLongestToolName = 128;

[[noreturn]] void refuse(const std::string& param, const std::string& message) {
  throw ApiError{400, message, "", param, 0};
}
[[noreturn]] void refuse_type(const std::string& name, const json& value, const char* wanted) {
  refuse(name, fmt::format("{} is {}; it must be {}", name, jobs::describe(value), wanted));
}

bool boolean(const std::string& name, const json& value) {
  if (!value.is_boolean()) refuse_type(name, value, "true or false");
  return value.get<bool>();
}
std::string string(const std::string& name, const json& value) {
  if (!value.is_string()) refuse_type(name, value, "a string");
  return value.get<std::string>();
}
int integer(const std::string& name, const json& value, int low, int high) {
  const bool is_whole =
      value.is_number_integer() ||
      (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  if (!is_whole || value < low || value > high)
    refuse(name, fmt::format("{} is {}; it must be an integer from {} to {}", name,
                             jobs::describe(value), low, high));
  return static_cast<int>(value.get<double>());
}

// Fields that both kinds have. False: none of them.
bool read_common(const std::string& name, const json& value, ApiRequest& out) {
  // llama.cpp's name for max_tokens; -1 and -2: as many as the context holds.
  if (name == "n_predict") return read_common("max_tokens", value, out);
  if ((name == "max_tokens" || name == "max_completion_tokens") && (value == -1 || value == -2))
    return true;
  if (name == "model") {
    out.model = string(name, value);
  } else if (name == "n") {
    out.samples = integer(name, value, 1, kMostSamples);
  } else if (name == "stream") {
    out.streams = boolean(name, value);
  } else if (name == "stream_options") {
    if (!value.is_object()) refuse_type(name, value, "an object");
    for (const auto& [option, setting] : value.items()) {
      if (option == "include_usage")
        out.includes_usage = boolean("stream_options.include_usage", setting);
      else if (!(option == "include_obfuscation" && setting.is_boolean()) &&
               !(option == "continuous_usage_stats" && setting == false) && !setting.is_null()) {
        const auto why = fmt::format("stream_options.{} is not supported", option.substr(0, 100));
        if (!jobs::Wishes::pass_over(why)) refuse(name, why);
      }
    }
  } else if (name == "include_stop_str_in_output") {
    out.keeps_stop = boolean(name, value);
  } else if (name == "priority") {
    out.priority = integer(name, value, -1000000, 1000000);
  } else if (name == "add_special_tokens") {
    out.adds_special = boolean(name, value);
  } else if (name == "truncate_prompt_tokens") {
    out.kept_prompt_tokens = integer(name, value, -1, INT32_MAX);
    if (out.kept_prompt_tokens == 0)
      refuse(name, "truncate_prompt_tokens is 0; give -1 or a number of tokens above 0");
  } else if (name == "prompt_logprobs") {
    out.prompt_logprobs = integer(name, value, 0, sampling::kMaxLogprobs);
  } else if (name == "use_beam_search") {
    out.uses_beams = boolean(name, value);
  } else if (jobs::read_sampling_field(name, value, out.params)) {
    out.has_max_tokens = out.has_max_tokens || name == "max_tokens";
    if (out.params.guide.kind != sampling::GuideKind::kNone && out.guide_field.empty())
      out.guide_field = name;
  } else if (name == "max_completion_tokens") {
    out.params.max_tokens = integer(name, value, 1, INT32_MAX);
    out.has_max_tokens = true;
  } else {
    return jobs::read_neutral_field(name, value);
  }
  return true;
}

std::vector<int32_t> token_ids(const json& value) {
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const json& id : value) ids.push_back(integer("prompt", id, 0, INT32_MAX));
  return ids;
}

// A text, a list of texts, a list of ids, or a list of lists of ids.
void read_prompts(const json& value, CompletionRequest& out) {
  out.prompts.clear();
  if (value.is_string()) {
    out.prompts.emplace_back(value.get<std::string>());
    return;
  }
  if (!value.is_array() || value.empty())
    refuse("prompt",
           "prompt must be a string, a list of strings, or lists of token ids; and not empty");
  if (value.front().is_number()) {
    out.prompts.emplace_back(token_ids(value));
    return;
  }
  if (value.size() > kMostSamples)
    refuse("prompt", fmt::format("prompt lists {} prompts; at most {} go in one request",
                                 value.size(), kMostSamples));
  for (const json& one : value) {
    if (one.is_string())
      out.prompts.emplace_back(one.get<std::string>());
    else if (one.is_array() && !one.empty())
      out.prompts.emplace_back(token_ids(one));
    else
      refuse_type("prompt", one, "a string or a list of token ids");
  }
}

void check_tokens(const ApiRequest& request, int64_t vocab_size) {
  const auto check = [&](const char* name, int32_t id) {
    if (id < 0 || id >= vocab_size)
      refuse(name,
             fmt::format("{} has token id {}; the model's are 0 to {}", name, id, vocab_size - 1));
  };
  for (int32_t id : request.params.stop_token_ids) check("stop_token_ids", id);
  for (const auto& [id, bias] : request.params.logit_bias) check("logit_bias", id);
}

// As many beams as num_beams says, or, as vLLM's use_beam_search has it, best_of or n.
void finish_beams(ApiRequest& request, const ordered_json& body) {
  SamplingParams& params = request.params;
  if (request.uses_beams && params.num_beams == 1)
    params.num_beams = std::max(request.best_of, request.samples);
  if (request.uses_beams && params.num_beams < 2)
    refuse("use_beam_search", "a beam search needs 2 or more beams: give num_beams, best_of or n");
  if (params.num_beams == 1) return;
  if (request.samples > params.num_beams)
    refuse("n", fmt::format("n is {}; a search with {} beams ends with at most so many",
                            request.samples, params.num_beams));
  const std::pair<const char*, double> ignored[] = {{"top_p", 1},       {"top_k", 0},
                                                    {"min_p", 0},       {"typical_p", 1},
                                                    {"top_n_sigma", 0}, {"xtc_probability", 0}};
  for (const auto& [name, neutral] : ignored)
    if (body.contains(name) && !body[name].is_null() && body[name] != neutral)
      refuse(name, fmt::format("{} has no effect on a beam search; leave it out", name));
  if (body.contains("temperature") && body["temperature"].is_number() && body["temperature"] != 0 &&
      body["temperature"] != 1)
    refuse("temperature", "temperature has no effect on a beam search; leave it out");
  request.best_of = request.samples;
}

void finish(ApiRequest& request, const ordered_json& body, int64_t vocab_size) {
  // A whole answer has its usage anyway.
  if (request.includes_usage && !request.streams &&
      !jobs::Wishes::pass_over("stream_options is only for \"stream\": true"))
    refuse("stream_options", "stream_options is only for \"stream\": true");
  if (request.prompt_logprobs >= 0 && request.streams)
    refuse("prompt_logprobs", "prompt_logprobs come with whole answers; leave out \"stream\"");
  request.best_of = std::max(request.best_of, request.samples);
  finish_beams(request, body);
  if (request.prompt_logprobs >= 0 && request.params.num_beams > 1)
    refuse("prompt_logprobs",
           "a beam search does not score its prompt; ask for that in another request");
  try {
    sampling::validate(request.params);
  } catch (const Error& error) {
    // It begins with the name of its field.
    const std::string text = error.what();
    const std::string name = text.substr(0, text.find_first_of(" [:"));
    refuse(body.contains(name) ? name : "", text);
  }
  check_tokens(request, vocab_size);
}

// Runs `read`, whose refusals are those of batch lines.
template <typename Read>
auto with_refusals(const Read& read) {
  try {
    return read();
  } catch (const Refusal& refusal) {
    throw ApiError{400, refusal.message, refusal.code == "unsupported" ? "unsupported" : "",
                   refusal.param, 0};
  }
}

ordered_json parse(std::string_view body) {
  if (const auto at = text::first_invalid_utf8(body))
    refuse("", fmt::format("byte {} of the body is not UTF-8", *at));
  ordered_json object = with_refusals(
      [&] { return jobs::parse_bounded<ordered_json>(body, kMostDepth, "the body"); });
  if (!object.is_object()) refuse("", "the body must be a JSON object");
  return object;
}

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kLongestToolName &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// {"type": "function", "function": {...}}.
bool is_function(const ordered_json& value) {
  return value.is_object() && value.contains("type") && value["type"] == "function" &&
         value.contains("function") && value["function"].is_object();
}

chat::Tool read_tool(const ordered_json& tool) {
  if (!is_function(tool))
    refuse("tools", "a tool is {\"type\": \"function\", \"function\": {...}}");
  const ordered_json& function = tool["function"];
  chat::Tool out;
  if (!function.contains("name") || !function["name"].is_string() ||
      !is_tool_name(function["name"].get<std::string>()))
    refuse("tools", fmt::format("a function's name is at most {} letters, digits, '_', '-' and '.'",
                                kLongestToolName));
  out.name = function["name"].get<std::string>();
  if (function.contains("parameters") && !function["parameters"].is_null()) {
    out.parameters = function["parameters"];
    if (!out.parameters.is_object())
      refuse("tools",
             fmt::format("the parameters of the function {} are {}; they must be a JSON schema",
                         out.name, jobs::describe(out.parameters)));
  }
  if (function.contains("strict") && !function["strict"].is_null()) {
    if (!function["strict"].is_boolean())
      refuse("tools", fmt::format("\"strict\" of the function {} must be true or false", out.name));
    out.is_strict = function["strict"].get<bool>();
  }
  return out;
}

// {"type": "allowed_tools", "mode": "auto" or "required", "tools": [...]}, or with both within
// "allowed_tools"; tools by their names, at the top or within "function".
void keep_allowed(const ordered_json& choice, std::vector<chat::Tool>& tools, ChatRequest& out) {
  const ordered_json& of = choice.contains("allowed_tools") ? choice["allowed_tools"] : choice;
  const bool is_right = of.is_object() && of.contains("tools") && of["tools"].is_array() &&
                        (!of.contains("mode") || of["mode"] == "auto" || of["mode"] == "required");
  if (!is_right)
    refuse("tool_choice",
           "allowed_tools has \"mode\", which is \"auto\" or \"required\", and \"tools\", a list");
  std::set<std::string> names;
  for (const ordered_json& tool : of["tools"]) {
    const bool is_nested = tool.is_object() && tool.contains("function");
    const ordered_json& named = is_nested ? tool["function"] : tool;
    if (named.is_object() && named.contains("name") && named["name"].is_string())
      names.insert(named["name"].get<std::string>());
  }
  std::erase_if(tools, [&](const chat::Tool& tool) { return !names.contains(tool.name); });
  if (tools.empty()) refuse("tool_choice", "tool_choice allows none of the tools");
  out.must_call = of.contains("mode") && of["mode"] == "required";
}

// Which of `tools` may or must be called: "auto" (as without a word), "none", "required", or one.
void read_tool_choice(const ordered_json& choice, std::vector<chat::Tool> tools, ChatRequest& out) {
  if (choice == "none") return;
  if (choice != "auto" && tools.empty()) refuse("tool_choice", "tool_choice needs \"tools\"");
  out.must_call = choice != "auto";
  if (is_function(choice) && choice["function"].contains("name")) {
    out.calls_many = false;  // the one that is named, once
    const ordered_json& name = choice["function"]["name"];
    std::erase_if(tools, [&](const chat::Tool& tool) { return name != tool.name; });
    if (tools.empty())
      refuse("tool_choice",
             fmt::format("tool_choice asks for {}, which is none of the tools", name.dump()));
  } else if (choice.is_object() && choice.contains("type") && choice["type"] == "allowed_tools") {
    keep_allowed(choice, tools, out);
  } else if (choice != "auto" && choice != "required") {
    refuse("tool_choice",
           "tool_choice is \"none\", \"auto\", \"required\", or {\"type\": \"function\", "
           "\"function\": {\"name\": ...}}");
  }
  out.callable = std::move(tools);
}

void finish_tools(const ordered_json& body, ChatRequest& out) {
  std::vector<chat::Tool> tools;
  for (const ordered_json& tool : out.tools) tools.push_back(read_tool(tool));
  const bool has_choice = body.contains("tool_choice") && !body["tool_choice"].is_null();
  read_tool_choice(has_choice ? body["tool_choice"] : ordered_json("auto"), std::move(tools), out);
  if (out.callable.empty()) return;
  using sampling::GuideKind;
  const GuideKind guide = out.params.guide.kind;
  if (guide != GuideKind::kNone && guide != GuideKind::kJson && guide != GuideKind::kJsonSchema)
    refuse("tools",
           "an answer is calls of tools, text, or JSON by a schema; leave out the guide or the "
           "tools, or add \"tool_choice\": \"none\"");
}

void read_documents(const ordered_json& value, ChatRequest& out) {
  if (!value.is_array()) refuse_type("documents", value, "a list");
  for (const ordered_json& document : value)
    if (!document.is_object())
      refuse("documents", "a document is an object, such as {\"title\": ..., \"text\": ...}");
  out.documents = value.empty() ? ordered_json(nullptr) : value;
}

// The answer goes on with the last message: it has a text, and nothing begins after it.
void finish_continuation(const ordered_json& body, ChatRequest& out) {
  constexpr const char* kField = "continue_final_message";
  if (body.contains("add_generation_prompt") && body["add_generation_prompt"] == true)
    refuse(kField, "continue_final_message and add_generation_prompt are both true; keep one");
  if (out.must_call)
    refuse(kField, "a call of a tool begins an answer; continue_final_message goes on with one");
  const ordered_json& last = out.messages.back();
  const auto content = last.find("content");
  if (content == last.end() || content->is_null() || content->empty() || *content == "")
    refuse(kField, "the last message has no text to go on with");
  out.adds_generation_prompt = false;
}

void read_message(const ordered_json& message) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
    refuse("messages", "every message is an object with a \"role\" that is a string");
  const auto content = message.find("content");
  const bool has_none = content == message.end() || content->is_null();
  // Templates would write "None", or break. An assistant may have called instead.
  if (has_none && message["role"] != "assistant")
    refuse("messages", fmt::format("a message of the role {} has no content; give it a text",
                                   jobs::describe(message["role"])));
  if (has_none || content->is_string()) return;
  if (!content->is_array())
    refuse("messages", "a message's content is a string or a list of parts");
  for (const ordered_json& part : *content) {
    if (!part.is_object() || !part.contains("type"))
      refuse("messages", "a part of a message's content is an object with a \"type\"");
    if (part["type"] != "text" || !part.contains("text") || !part["text"].is_string())
      refuse("messages",
             "only text parts are supported: this server has no model for images or sound");
  }
}
}  // namespace

std::string ApiError::body() const {
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  const ordered_json error{{"error",
                            {{"message", message},
                             {"type", type},
                             {"param", param.empty() ? ordered_json(nullptr) : ordered_json(param)},
                             {"code", code.empty() ? ordered_json(nullptr) : ordered_json(code)}}}};
  return dump(error);
}

ordered_json parse_object(std::string_view body) { return parse(body); }

CompletionRequest parse_completion(std::string_view body, const SamplingParams& defaults,
                                   int64_t vocab_size) {
  return read_completion(parse(body), defaults, vocab_size);
}

CompletionRequest read_completion(const ordered_json& object, const SamplingParams& defaults,
                                  int64_t vocab_size) {
  CompletionRequest out;
  out.params = defaults;
  return with_refusals([&] {
    for (const auto& [name, value] : object.items()) {
      if (value.is_null()) continue;
      if (name == "prompt") {
        read_prompts(value, out);
      } else if (name == "logprobs") {
        out.params.logprobs = integer(name, value, 0, sampling::kMaxLogprobs);
      } else if (name == "echo") {
        out.echoes = boolean(name, value);
      } else if (name == "best_of") {
        out.best_of = integer(name, value, 1, kMostSamples);
      } else if (name == "max_tokens" && value == 0) {
        out.generates = false;
        out.has_max_tokens = true;
        out.params.max_tokens = 1;
      } else if (!read_common(name, value, out)) {
        jobs::refuse_unknown_field(name);
      }
    }
    if (out.prompts.empty()) refuse("prompt", "prompt is missing");
    if (object.contains("best_of") && !object["best_of"].is_null() && out.best_of < out.samples)
      refuse("best_of", "best_of must be at least n");
    if (!out.generates && !out.echoes)
      refuse("max_tokens", "max_tokens is 0, which makes sense with \"echo\": true only");
    finish(out, object, vocab_size);
    if (out.params.num_beams > 1 && (!out.generates || (out.echoes && out.params.logprobs >= 0)))
      refuse("echo", "a beam search does not score its prompt; ask for that in another request");
    if (out.streams && out.best_of > out.samples)
      refuse("best_of", "best_of above n can't be streamed: the best is known at the end");
    if (static_cast<int64_t>(out.prompts.size()) * out.best_of > kMostSamples)
      refuse("best_of", fmt::format("prompts times best_of is more than {}", kMostSamples));
    return out;
  });
}

ChatRequest parse_chat(std::string_view body, const SamplingParams& defaults, int64_t vocab_size) {
  const ordered_json object = parse(body);
  if (!has_functions(object)) return read_chat(object, defaults, vocab_size);
  ChatRequest out = read_chat(with_tools(object), defaults, vocab_size);
  out.calls_function = true;
  return out;
}

ChatRequest read_chat(const ordered_json& object, const SamplingParams& defaults,
                      int64_t vocab_size) {
  ChatRequest out;
  out.params = defaults;
  bool wants_logprobs = false;
  int top_logprobs = -1;
  std::optional<bool> thinks;
  return with_refusals([&] {
    for (const auto& [name, value] : object.items()) {
      if (value.is_null()) continue;
      if (name == "messages") {
        if (!value.is_array() || value.empty())
          refuse("messages", "messages must be a list of messages, and not empty");
        for (const json& message : value) read_message(message);
        out.messages = value;
      } else if (name == "tools") {
        if (!value.is_array()) refuse_type(name, value, "a list");
        out.tools = value.empty() ? json(nullptr) : value;
      } else if (name == "parallel_tool_calls") {
        out.calls_many = boolean(name, value);
      } else if (name == "tool_choice") {
        // With the tools, below.
      } else if (name == "chat_template_kwargs") {
        if (!value.is_object()) refuse_type(name, value, "an object");
        out.variables = value;
      } else if (name == "chat_template") {
        out.chat_template = string(name, value);
      } else if (name == "continue_final_message") {
        out.continues_last = boolean(name, value);
      } else if (name == "documents") {
        read_documents(value, out);
      } else if (name == "add_generation_prompt") {
        out.adds_generation_prompt = boolean(name, value);
      } else if (name == "logprobs") {
        wants_logprobs = boolean(name, value);
      } else if (name == "top_logprobs") {
        top_logprobs = integer(name, value, 0, sampling::kMaxLogprobs);
      } else if (name == "reasoning_effort" || name == "verbosity") {
        out.hints[name] = string(name, value);
      } else if (name == "enable_thinking" || name == "thinking") {
        // Qwen's name for what templates read; {"type": "enabled"} or "disabled" is DeepSeek's.
        const bool is_said = value.is_object() && value.contains("type");
        if (!value.is_boolean() && !is_said) refuse_type(name, value, "true or false");
        thinks = is_said ? value["type"] != "disabled" : value.get<bool>();
      } else if (!read_common(name, value, out)) {
        jobs::refuse_unknown_field(name);
      }
    }
    if (out.messages.is_null()) refuse("messages", "messages is missing");
    if (thinks && !out.variables.contains("enable_thinking"))
      out.variables["enable_thinking"] = *thinks;
    if (top_logprobs >= 0 && !wants_logprobs)
      refuse("top_logprobs", "top_logprobs needs \"logprobs\": true");
    if (wants_logprobs) out.params.logprobs = std::max(top_logprobs, 0);
    finish_tools(object, out);
    if (out.continues_last) finish_continuation(object, out);
    finish(out, object, vocab_size);
    return out;
  });
}

}  // namespace sluice::serve
