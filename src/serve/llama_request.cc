#include "src/serve/llama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/jobs/bounded_json.h"
#include "src/jobs/request_fields.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr FieldName kLlamaNames[] = {
    {"max_tokens", "n_predict"}, {"repetition_penalty", "repeat_penalty"}, {"logprobs", "n_probs"}};

// Fields that a completion has under the same name.
constexpr std::string_view kSameFields[] = {
    "model", "stream",  "stop",        "temperature",      "top_k",
    "top_p", "grammar", "json_schema", "presence_penalty", "frequency_penalty"};

// Fields about speed, slots and what happens to contexts that are full, which is not done here:
// numbers and flags are taken.
constexpr std::string_view kFieldsOfRunning[] = {"cache_prompt", "n_keep", "n_discard",
                                                 "n_cache_reuse"};

constexpr size_t kMostBiases = jobs::kMostKeys;  // in a list: it becomes an object
constexpr double kNever = -100;                  // the bias of a token that is not to come

// Values that ask for nothing, of fields that would change the answer.
struct AbsentField {
  std::string_view name;
  bool (*asks_nothing)(const ordered_json& value);
  const char* why;
};
constexpr AbsentField kAbsentFields[] = {
    {"id_slot", [](const ordered_json& v) { return v == -1; },
     "there are no slots: what was computed before is found by its tokens"},
    {"n_indent", [](const ordered_json& v) { return v == 0; }, "it is not there: 0 is"},
    {"min_keep", [](const ordered_json& v) { return v == 0 || v == 1; },
     "filters always leave one token"},
    {"tfs_z", [](const ordered_json& v) { return v == 1; }, "it is not there: 1 is"},
    {"dynatemp_range", [](const ordered_json& v) { return v == 0; }, "it is not there: 0 is"},
    {"dynatemp_exponent", [](const ordered_json& v) { return v.is_number(); },
     "it must be a number"},
    {"t_max_predict_ms", [](const ordered_json& v) { return v == 0; }, "it is not there: 0 is"},
    {"penalize_nl", [](const ordered_json& v) { return v == true; }, "only true is there"},
    {"post_sampling_probs", [](const ordered_json& v) { return v == false; },
     "probabilities are those of the model"},
    {"timings_per_token", [](const ordered_json& v) { return v == false; },
     "timings come at the end"},
    {"return_progress", [](const ordered_json& v) { return v == false; }, "only false is there"},
    {"response_fields", [](const ordered_json& v) { return v.is_array() && v.empty(); },
     "all fields are answered"},
    {"lora", [](const ordered_json& v) { return v.is_array() && v.empty(); },
     "an adapter is chosen by its name, as model"},
    {"image_data", [](const ordered_json& v) { return v.is_array() && v.empty(); },
     "this server has no model for images"},
    {"samplers", [](const ordered_json&) { return false; },
     "their order is always the same here: leave it out"},
};

bool read_absent_llama(const std::string& name, const ordered_json& value) {
  if (is_one_of(name, kFieldsOfRunning)) {
    if (!value.is_number() && !value.is_boolean())
      refuse_field(name, fmt::format("{} is {}; it must be a number or a flag", name,
                                     jobs::describe(value)));
    return true;
  }
  for (const AbsentField& field : kAbsentFields) {
    if (name != field.name) continue;
    if (field.asks_nothing(value)) return true;
    const std::string why = fmt::format("{} is {}; {}", name, jobs::describe(value), field.why);
    if (name == "image_data" || name == "lora") refuse_unsupported(name, why);
    pass_over_or_refuse(name, why);
    return true;
  }
  return false;
}

// As {"ID": bias}, or a list of [id, bias]; false keeps a token away.
ordered_json bias_object(const ordered_json& value) {
  ordered_json out = ordered_json::object();
  const auto add = [&](const std::string& token, const ordered_json& bias) {
    if (!bias.is_number() && bias != false)
      refuse_field("logit_bias", fmt::format("logit_bias has {} for token {}; it must be a number "
                                             "or false",
                                             jobs::describe(bias), token.substr(0, 40)));
    out[token] = bias.is_number() ? bias : ordered_json(kNever);
  };
  if (value.is_object()) {
    for (const auto& [token, bias] : value.items()) add(token, bias);
    return out;
  }
  if (need_list("logit_bias", value).size() > kMostBiases)
    refuse_field("logit_bias", fmt::format("logit_bias has {} tokens; at most {} are taken",
                                           value.size(), kMostBiases));
  for (const ordered_json& pair : value) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer())
      refuse_field("logit_bias", fmt::format("logit_bias has {}; it must have lists of a token id "
                                             "and a number",
                                             jobs::describe(pair)));
    add(pair[0].dump(), pair[1]);
  }
  return out;
}

// A text, ids, both in one list, or a list of prompts. Parts are kept for whoever has a tokenizer.
void read_prompt(const ordered_json& value, LlamaRequest& out, ordered_json& body) {
  out.prompt = value;
  const bool is_mixed =
      value.is_array() &&
      std::any_of(value.begin(), value.end(), [](const auto& one) { return one.is_number(); }) &&
      std::any_of(value.begin(), value.end(), [](const auto& one) { return one.is_string(); });
  if (!is_mixed) {
    body["prompt"] = value;
    return;
  }
  for (const ordered_json& part : value) {
    if (part.is_string())
      out.parts.emplace_back(part.get<std::string>());
    else if (part.is_number_integer() && part >= 0 && part <= INT32_MAX)
      out.parts.emplace_back(part.get<int32_t>());
    else
      refuse_field("prompt",
                   fmt::format("prompt has {} beside texts and token ids", jobs::describe(part)));
  }
  body["prompt"] = ordered_json::array({0});  // until the parts are tokens
}

// Of so many last tokens: all, here. Without penalties the number means nothing.
void check_last_tokens(const ordered_json& last, const sampling::SamplingParams& params) {
  if (!last.is_number_integer())
    refuse_field("repeat_last_n",
                 fmt::format("repeat_last_n is {}; it must be an integer", jobs::describe(last)));
  const bool has_penalty = params.repetition_penalty != 1 || params.presence_penalty != 0 ||
                           params.frequency_penalty != 0;
  if (has_penalty && last != -1)
    pass_over_or_refuse("repeat_last_n",
                        fmt::format("repeat_last_n is {}; penalties are of all tokens, which is -1",
                                    jobs::describe(last)));
}

LlamaRequest read_llama(const ordered_json& object, const sampling::SamplingParams& defaults,
                        int64_t vocab_size) {
  LlamaRequest out;
  ordered_json body = ordered_json::object();
  bool generates = true, fills_context = true;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (name == "prompt") {
      read_prompt(value, out, body);
    } else if (name == "n_predict" || name == "max_tokens") {
      fills_context = value == -1 || value == -2;
      generates = value != 0;
      if (!fills_context) body["max_tokens"] = generates ? value : ordered_json(1);
    } else if (name == "repeat_penalty") {
      body["repetition_penalty"] = value;
    } else if (name == "n_probs") {
      if (value != 0) body["logprobs"] = value;
    } else if (name == "seed") {
      if (value != -1) body["seed"] = value;
    } else if (name == "logit_bias") {
      body["logit_bias"] = bias_object(value);
    } else if (name == "return_tokens") {
      out.returns_tokens = need_flag(name, value);
    } else if (name != "repeat_last_n" && !read_absent_llama(name, value)) {
      if (!is_one_of(name, kSameFields) && !is_own_field(name)) refuse_unknown(name);
      body[name] = value;
    }
  }
  // A schema that is there wins over a grammar that is empty.
  if (body.contains("grammar") && body["grammar"] == "") body.erase("grammar");
  if (body.contains("json_schema") && body["json_schema"].is_object() &&
      body["json_schema"].empty())
    body.erase("json_schema");
  out.call = with_names(kLlamaNames, [&] { return read_completion(body, defaults, vocab_size); });
  if (const ordered_json* last = find_value(object, "repeat_last_n"))
    check_last_tokens(*last, out.call.params);
  out.call.generates = generates;
  out.call.fills_context = fills_context;
  out.call.keeps_tokens = out.returns_tokens || out.call.streams;
  if (!out.parts.empty()) out.call.prompts.clear();
  out.settings = llama_settings(out.call.params);
  if (fills_context) out.settings["n_predict"] = -1;
  if (!generates) out.settings["n_predict"] = 0;
  return out;
}
}  // namespace

ordered_json llama_settings(const sampling::SamplingParams& params) {
  ordered_json out{{"n_predict", params.max_tokens},
                   {"temperature", params.temperature},
                   {"top_k", params.top_k},
                   {"top_p", params.top_p},
                   {"min_p", params.min_p},
                   {"typical_p", params.typical_p},
                   {"top_n_sigma", params.top_n_sigma},
                   {"xtc_probability", params.xtc_probability},
                   {"xtc_threshold", params.xtc_threshold},
                   {"repeat_last_n", -1},
                   {"repeat_penalty", params.repetition_penalty},
                   {"presence_penalty", params.presence_penalty},
                   {"frequency_penalty", params.frequency_penalty},
                   {"dry_multiplier", params.dry_multiplier},
                   {"dry_base", params.dry_base},
                   {"dry_allowed_length", params.dry_allowed_length},
                   {"dry_penalty_last_n", params.dry_penalty_last_n},
                   {"mirostat", params.mirostat},
                   {"mirostat_tau", params.mirostat_tau},
                   {"mirostat_eta", params.mirostat_eta},
                   {"n_probs", std::max(params.logprobs, 0)},
                   {"ignore_eos", params.ignore_eos},
                   {"stop", params.stop}};
  out["seed"] = params.has_seed ? ordered_json(params.seed) : ordered_json(-1);
  return out;
}

ApiError in_llama_words(ApiError error) { return renamed(std::move(error), kLlamaNames); }

LlamaRequest parse_llama_completion(std::string_view body, const sampling::SamplingParams& defaults,
                                    int64_t vocab_size) {
  return read_llama(parse_object(body), defaults, vocab_size);
}

}  // namespace sluice::serve
