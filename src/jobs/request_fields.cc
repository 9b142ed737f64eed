#include "src/jobs/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/jobs/bounded_json.h"
#include "src/jobs/wishes.h"

namespace sluice::jobs {

namespace {

// Ordered: the properties of a schema come in its order.
using json = nlohmann::ordered_json;
using sampling::SamplingParams;

constexpr int kMostSchemaDepth = 64;

[[noreturn]] void refuse_type(const char* name, const json& value, const char* wanted) {
  throw Refusal{kInvalid, fmt::format("{} is {}; it must be {}", name, describe(value), wanted)};
}

float number(const char* name, const json& value) {
  if (!value.is_number()) refuse_type(name, value, "a number");
  return static_cast<float>(value.get<double>());
}

int integer(const char* name, const json& given) {
  // Some languages have but one kind of number: 3.0 is 3.
  const bool is_whole = given.is_number_float() && std::abs(given.get<double>()) < 2147483648.0 &&
                        given.get<double>() == std::floor(given.get<double>());
  const json value = is_whole ? json(static_cast<int64_t>(given.get<double>())) : given;
  if (!value.is_number_integer()) refuse_type(name, value, "an integer");
  constexpr int64_t kLow = std::numeric_limits<int>::min(), kHigh = std::numeric_limits<int>::max();
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(kHigh)
                        : value.get<int64_t>() >= kLow && value.get<int64_t>() <= kHigh;
  if (!fits) refuse_type(name, value, "a 32-bit integer");
  return value.get<int>();
}

bool boolean(const char* name, const json& value) {
  if (!value.is_boolean()) refuse_type(name, value, "true or false");
  return value.get<bool>();
}

std::string string(const char* name, const json& value) {
  if (!value.is_string()) refuse_type(name, value, "a string");
  return value.get<std::string>();
}

std::vector<int32_t> token_ids(const char* name, const json& value) {
  if (!value.is_array()) refuse_type(name, value, "a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const json& id : value) {
    ids.push_back(integer(name, id));
    if (ids.back() < 0) refuse_type(name, id, "a list of token ids, 0 or more");
  }
  return ids;
}

// A text, a list of token ids, or a list that holds just one of either.
void set_prompt(const char* name, const json& value, Request& request) {
  if (value.is_string()) {
    request.prompt = value.get<std::string>();
    return;
  }
  if (!value.is_array()) refuse_type(name, value, "a string or a list of token ids");
  if (value.empty()) return;  // refused with the empty text
  if (value.front().is_number()) {
    request.prompt_ids = token_ids(name, value);
    return;
  }
  if (value.size() > 1) {
    throw Refusal{kUnsupported, fmt::format("{} lists {} prompts; give each a line of its own",
                                            name, value.size())};
  }
  if (value.front().is_string())
    request.prompt = value.front().get<std::string>();
  else
    request.prompt_ids = token_ids(name, value.front());
}

void set_stop(const char* name, const json& value, SamplingParams& params) {
  params.stop.clear();
  if (value.is_string()) {
    params.stop.push_back(value.get<std::string>());
    return;
  }
  if (!value.is_array()) refuse_type(name, value, "a string or a list of strings");
  for (const json& stop : value) params.stop.push_back(string(name, stop));
}

void set_seed(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_number_integer()) refuse_type(name, value, "an integer");
  params.seed = value.is_number_unsigned() ? value.get<uint64_t>()
                                           : static_cast<uint64_t>(value.get<int64_t>());
  params.has_seed = true;
}

void set_logit_bias(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_object()) refuse_type(name, value, "an object of token ids and numbers");
  params.logit_bias.clear();
  // By name, as files of results know them from before.
  const nlohmann::json by_name(value);
  for (const auto& [text, bias] : by_name.items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (error != std::errc() || end != text.data() + text.size() || token < 0) {
      throw Refusal{kInvalid, fmt::format("{} has the key \"{}\", which is no token id", name,
                                          text.substr(0, 40))};
    }
    params.logit_bias.emplace_back(token, number(name, bias));
  }
}

// Texts, and lists of token ids.
void set_breakers(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_array()) refuse_type(name, value, "a list of strings or of lists of token ids");
  params.dry_sequence_breakers.clear();
  params.dry_breaker_tokens.clear();
  for (const json& breaker : value)
    if (breaker.is_array())
      params.dry_breaker_tokens.push_back(token_ids(name, breaker));
    else
      params.dry_sequence_breakers.push_back(string(name, breaker));
}

// llama.cpp writes "off" as -1.
void set_top_n_sigma(const char* name, const json& value, SamplingParams& params) {
  params.top_n_sigma = value == -1 ? 0 : number(name, value);
}

// Hugging Face's: a boolean or "never".
void set_early_stopping(const char* name, const json& value, SamplingParams& params) {
  using sampling::EarlyStopping;
  if (value == "never")
    params.early_stopping = EarlyStopping::kNever;
  else if (value.is_boolean())
    params.early_stopping = value.get<bool>() ? EarlyStopping::kAtOnce : EarlyStopping::kHeuristic;
  else
    refuse_type(name, value, "true, false or \"never\"");
}

// A schema comes as an object, or as its text.
void set_schema(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_object() && !value.is_string() && !value.is_boolean())
    refuse_type(name, value, "a JSON schema");
  // Its text is read again by who makes the guide: bounded here, where it came as a text.
  if (value.is_string()) try {
      parse_bounded<json>(value.get_ref<const std::string&>(), kMostSchemaDepth, "the schema");
    } catch (Refusal& refusal) {
      refusal.param = name;  // not a field of the schema
      throw;
    }
  params.guide = {sampling::GuideKind::kJsonSchema,
                  value.is_string() ? value.get<std::string>() : value.dump(),
                  {}};
}
void set_regex(const char* name, const json& value, SamplingParams& params) {
  params.guide = {sampling::GuideKind::kRegex, string(name, value), {}};
}
void set_grammar(const char* name, const json& value, SamplingParams& params) {
  params.guide = {sampling::GuideKind::kGrammar, string(name, value), {}};
}
void set_choice(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_array()) refuse_type(name, value, "a list of strings");
  params.guide = {sampling::GuideKind::kChoice, {}, {}};
  for (const json& choice : value) params.guide.choices.push_back(string(name, choice));
}

// OpenAI's: text, any JSON object, or JSON by a schema.
void set_response_format(const char* name, const json& value, SamplingParams& params) {
  const bool has_type = value.is_object() && value.contains("type");
  const auto is_type = [&](const char* type) { return has_type && value["type"] == type; };
  if (is_type("text")) return;
  if (is_type("json_object")) {
    params.guide = {sampling::GuideKind::kJson, {}, {}};
    return;
  }
  if (!is_type("json_schema"))
    refuse_type(name, value, "an object whose type is text, json_object or json_schema");
  if (!value.contains("json_schema") || !value["json_schema"].is_object() ||
      !value["json_schema"].contains("schema"))
    throw Refusal{kInvalid, "response_format.json_schema must be an object with a \"schema\""};
  const json& format = value["json_schema"];
  set_schema("response_format.json_schema.schema", format["schema"], params);
  params.guide.relaxes = !(format.contains("strict") && format["strict"] == true);
}

// vLLM's: one of json, regex, choice and grammar.
void set_structured_outputs(const char* name, const json& value, SamplingParams& params) {
  if (!value.is_object()) refuse_type(name, value, "an object");
  for (const auto& [kind, of] : value.items()) {
    if (of.is_null()) continue;
    if (kind == "json")
      set_schema("structured_outputs.json", of, params);
    else if (kind == "regex")
      set_regex("structured_outputs.regex", of, params);
    else if (kind == "choice")
      set_choice("structured_outputs.choice", of, params);
    else if (kind == "grammar")
      set_grammar("structured_outputs.grammar", of, params);
    else if (kind == "json_object" && of == true)
      params.guide = {sampling::GuideKind::kJson, {}, {}};
    else
      throw Refusal{kUnsupported, fmt::format("structured_outputs.{} is not supported; json, "
                                              "json_object, regex, choice and grammar are",
                                              kind.substr(0, 100))};
  }
}

// Fields that ask for something that is not there: only the value that changes nothing is taken.
void expect_one(const char* name, const json& value, Request&) {
  const int count = integer(name, value);
  if (count != 1) {
    throw Refusal{kUnsupported,
                  fmt::format("{} is {}; only 1 is supported: repeat the line with other seeds",
                              name, count)};
  }
}

void expect_false(const char* name, const json& value, Request&) {
  if (boolean(name, value))
    throw Refusal{kUnsupported, fmt::format("{} is true; it is not supported here", name)};
}

void expect_no_vllm_beams(const char* name, const json& value, Request&) {
  if (boolean(name, value))
    throw Refusal{kUnsupported,
                  fmt::format("{} is true; say how many beams with num_beams instead", name)};
}

void expect_null(const char* name, const json& value, Request&) {
  throw Refusal{kUnsupported,
                fmt::format("{} is {}; it is not supported here", name, describe(value))};
}

void expect_chat(const char* name, const Request& request) {
  if (!request.is_chat)
    throw Refusal{kUnsupported, fmt::format("{} belongs to /v1/chat/completions", name)};
}

// The messages of a chat: each with its role and a text, or parts of text that become one.
void set_messages(const char* name, const json& value, Request& request) {
  expect_chat(name, request);
  if (!value.is_array() || value.empty())
    refuse_type(name, value, "a list of messages, and not empty");
  json messages = value;
  for (json& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      throw Refusal{kInvalid, "every message is an object with a \"role\" that is a string"};
    const auto content = message.find("content");
    if (content == message.end() || content->is_null() || content->is_string()) continue;
    if (!content->is_array()) refuse_type("content", *content, "a string or a list of parts");
    std::string text;
    for (const json& part : *content) {
      if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") ||
          !part["text"].is_string())
        throw Refusal{kUnsupported, "a part of a message is no text; only texts are supported"};
      text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
    }
    *content = std::move(text);
  }
  request.prompt = nlohmann::json(messages).dump();  // by name, as files of results know them
}

bool is_nothing(const json& value) {
  return (value.is_structured() || value.is_string()) && (value.empty() || value == "");
}

// What only whoever writes the chat's prompt understands.
void keep_for_chat(const char* name, const json& value, Request& request) {
  expect_chat(name, request);
  json kept = request.chat.empty()
                  ? json::object()
                  : parse_bounded<json>(request.chat, INT32_MAX, "the chat's fields");
  kept[name] = value;
  request.chat = kept.dump();
}

// Likewise; a completion may say that it wants none of it.
void keep_where_it_says_something(const char* name, const json& value, Request& request) {
  if (value == false || is_nothing(value)) return;
  keep_for_chat(name, value, request);
}

// Completions ask for a number, chats for true and top_logprobs.
void set_logprobs(const char* name, const json& value, Request& request) {
  if (!request.is_chat)
    request.params.logprobs = integer(name, value);
  else if (boolean(name, value))
    request.params.logprobs = std::max(request.params.logprobs, 0);
}
void set_top_logprobs(const char* name, const json& value, Request& request) {
  expect_chat(name, request);
  request.params.logprobs = integer(name, value);
}
void set_completion_tokens(const char* name, const json& value, Request& request) {
  request.params.max_tokens = integer(name, value);
}

// What a neutral field may be.
using IsNeutral = bool (*)(const json& value);
bool is_any(const json&) { return true; }
bool is_true(const json& value) { return value == true; }
bool is_false(const json& value) { return value == false; }
bool is_text_only(const json& value) { return value == json::array({"text"}); }

// What becomes of a value that is not neutral.
enum class Otherwise : uint8_t {
  kPassOver,  ///< the answer makes sense without it (Wishes)
  kRefuse     ///< what was asked for would be missing
};
struct NeutralField {
  const char* name;
  IsNeutral takes;
  Otherwise otherwise = Otherwise::kPassOver;
};
constexpr NeutralField kNeutralFields[] = {
    // Who asks, and how that is kept there.
    {"user", is_any},
    {"metadata", is_any},
    {"client_metadata", is_any},
    {"safety_identifier", is_any},
    {"request_id", is_any},
    {"session_id", is_any},
    {"store", is_false},
    {"service_tier", [](const json& v) { return v == "auto" || v == "default"; }},
    // How fast, and for how long, not what.
    {"prompt_cache_key", is_any},
    {"prompt_cache_retention", is_any},
    {"prompt_cache_options", is_any},
    {"cache_salt", is_any},
    {"cache_prompt", is_any},
    {"id_slot", is_any},
    {"ttl", is_any},
    {"keep_alive", is_any},
    {"speed", is_any},
    {"prediction", is_any},
    {"timings_per_token", is_any},
    {"return_progress", is_any},
    // How thoughts are told apart from answers: as the server was started.
    {"reasoning_format", is_any},
    {"include_reasoning", is_true},
    {"reasoning_in_content", is_false},
    // What is done here as it is.
    {"modalities", is_text_only, Otherwise::kRefuse},
    {"suffix", [](const json& v) { return v == ""; }, Otherwise::kRefuse},
    {"skip_special_tokens", is_true},
    {"spaces_between_special_tokens", is_true},
    {"return_token_ids", is_false},
    {"return_tokens_as_token_ids", is_false},
    {"continue_final_message", is_false, Otherwise::kRefuse},
    {"documents", is_nothing, Otherwise::kRefuse},
    {"bad_words", is_nothing, Otherwise::kRefuse},
    {"mm_processor_kwargs", is_nothing},
    {"vllm_xargs", is_nothing},
    {"samplers", is_nothing},
    {"penalty_prompt", is_nothing},
    // Known, and not here.
    {"audio", nullptr, Otherwise::kRefuse},
    {"web_search_options", nullptr},
    {"prompt_logprobs", nullptr, Otherwise::kRefuse},
};

template <typename Target>
struct Field {
  const char* name;
  void (*read)(const char* name, const json& value, Target& target);
};

template <float SamplingParams::*field>
void set_number(const char* name, const json& value, SamplingParams& params) {
  params.*field = number(name, value);
}

template <int SamplingParams::*field>
void set_integer(const char* name, const json& value, SamplingParams& params) {
  params.*field = integer(name, value);
}

constexpr Field<SamplingParams> kSamplingFields[] = {
    {"max_tokens", set_integer<&SamplingParams::max_tokens>},
    {"min_tokens", set_integer<&SamplingParams::min_tokens>},
    {"temperature", set_number<&SamplingParams::temperature>},
    // vLLM writes "off" as -1
    {"top_k", [](const char* n, const json& v,
                 SamplingParams& p) { p.top_k = integer(n, v) == -1 ? 0 : integer(n, v); }},
    {"top_p", set_number<&SamplingParams::top_p>},
    {"min_p", set_number<&SamplingParams::min_p>},
    {"typical_p", set_number<&SamplingParams::typical_p>},
    {"top_n_sigma", set_top_n_sigma},
    {"xtc_probability", set_number<&SamplingParams::xtc_probability>},
    {"xtc_threshold", set_number<&SamplingParams::xtc_threshold>},
    {"mirostat", set_integer<&SamplingParams::mirostat>},
    {"mirostat_tau", set_number<&SamplingParams::mirostat_tau>},
    {"mirostat_eta", set_number<&SamplingParams::mirostat_eta>},
    {"dry_multiplier", set_number<&SamplingParams::dry_multiplier>},
    {"dry_base", set_number<&SamplingParams::dry_base>},
    {"dry_allowed_length", set_integer<&SamplingParams::dry_allowed_length>},
    {"dry_penalty_last_n", set_integer<&SamplingParams::dry_penalty_last_n>},
    {"dry_sequence_breakers", set_breakers},
    {"repetition_penalty", set_number<&SamplingParams::repetition_penalty>},
    {"presence_penalty", set_number<&SamplingParams::presence_penalty>},
    {"frequency_penalty", set_number<&SamplingParams::frequency_penalty>},
    {"seed", set_seed},
    {"stop", set_stop},
    {"stop_token_ids",
     [](const char* n, const json& v, SamplingParams& p) { p.stop_token_ids = token_ids(n, v); }},
    {"ignore_eos",
     [](const char* n, const json& v, SamplingParams& p) { p.ignore_eos = boolean(n, v); }},
    {"logit_bias", set_logit_bias},
    {"num_beams", set_integer<&SamplingParams::num_beams>},
    {"length_penalty", set_number<&SamplingParams::length_penalty>},
    {"early_stopping", set_early_stopping},
    {"response_format", set_response_format},
    {"structured_outputs", set_structured_outputs},
    {"guided_json", set_schema},
    {"guided_regex", set_regex},
    {"guided_choice", set_choice},
    {"json_schema", set_schema},
    {"guided_grammar", set_grammar},
    {"grammar", set_grammar},
};

constexpr Field<Request> kFields[] = {
    {"prompt", set_prompt},
    {"model", [](const char* n, const json& v, Request& r) { r.model = string(n, v); }},
    {"logprobs", set_logprobs},
    {"top_logprobs", set_top_logprobs},
    {"n", expect_one},
    {"best_of", expect_one},
    {"echo", expect_false},
    {"stream", expect_false},
    {"stream_options", expect_null},
    {"use_beam_search", expect_no_vllm_beams},
    {"messages", set_messages},
    {"tools", keep_for_chat},
    {"tool_choice", keep_for_chat},
    {"parallel_tool_calls", keep_for_chat},
    {"chat_template_kwargs", keep_for_chat},
    {"chat_template", keep_where_it_says_something},
    {"continue_final_message", keep_where_it_says_something},
    {"documents", keep_where_it_says_something},
    {"max_completion_tokens", set_completion_tokens},
    {"reasoning_effort", keep_for_chat},
    {"verbosity", keep_for_chat},
};

template <typename Target, size_t kCount>
bool read_field(const Field<Target> (&fields)[kCount], const std::string& name, const json& value,
                Target& target) {
  for (const Field<Target>& field : fields) {
    if (name != field.name) continue;
    try {
      if (!value.is_null()) field.read(field.name, value, target);
    } catch (Refusal& refusal) {
      if (refusal.param.empty()) refusal.param = field.name;
      throw;
    }
    return true;
  }
  return false;
}

}  // namespace

std::string describe(const json& value) {
  if (value.is_number()) return "the number " + value.dump();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_null()) return "null";
  if (value.is_string())
    return value.get_ref<const std::string&>().size() <= 40 ? "the string " + value.dump()
                                                            : "a string";
  return value.is_array() ? "a list" : "an object";
}

bool read_sampling_field(const std::string& name, const json& value, SamplingParams& params) {
  const sampling::GuideSpec before = std::exchange(params.guide, {});
  const bool is_known = read_field(kSamplingFields, name, value, params);
  const bool has_one = params.guide.kind != sampling::GuideKind::kNone;
  if (has_one && before.kind != sampling::GuideKind::kNone)
    throw Refusal{kInvalid, fmt::format("{} asks for a second guided output; keep one", name),
                  name};
  if (!has_one) params.guide = before;
  return is_known;
}

void refuse_unknown_field(const std::string& name) {
  const std::string shown = name.substr(0, 100);
  if (Wishes::pass_over(fmt::format("the field \"{}\" is unknown and changes nothing", shown)))
    return;
  throw Refusal{
      kUnsupported,
      fmt::format("the field \"{}\" is unknown; remove it if the answer does not need it", shown),
      shown};
}

bool read_neutral_field(const std::string& name, const json& value) {
  for (const NeutralField& field : kNeutralFields) {
    if (name != field.name) continue;
    if (value.is_null() || (field.takes && field.takes(value))) return true;
    const std::string why =
        fmt::format("{} is {}; it is not supported here", name, describe(value));
    if (field.otherwise == Otherwise::kPassOver && Wishes::pass_over(why)) return true;
    throw Refusal{kUnsupported, why, name};
  }
  return false;
}

void read_body(const json& body, Request& request) {
  for (const auto& [name, value] : body.items())
    if (!read_sampling_field(name, value, request.params) &&
        !read_field(kFields, name, value, request) && !read_neutral_field(name, value))
      refuse_unknown_field(name);
  const char* asked = request.is_chat ? "messages" : "prompt";
  if (!body.contains(asked) || body[asked].is_null())
    throw Refusal{kInvalid, fmt::format("{} is missing", asked), asked};
  if (request.is_chat && body.contains("prompt") && !body["prompt"].is_null())
    throw Refusal{kInvalid, "prompt and messages are both given; keep one"};
  if (request.is_chat && body.contains("top_logprobs") && !body["top_logprobs"].is_null() &&
      !(body.contains("logprobs") && body["logprobs"] == true))
    throw Refusal{kInvalid, "top_logprobs needs \"logprobs\": true"};
  if (request.prompt.empty() && request.prompt_ids.empty())
    throw Refusal{kInvalid, "prompt is empty"};
}

}  // namespace sluice::jobs
