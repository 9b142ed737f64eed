#include "src/jobs/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/jobs/bounded_json.h"
#include "src/jobs/content_key.h"
#include "src/jobs/request_fields.h"
#include "src/jobs/utf8.h"

namespace sluice::jobs {

namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;  // of lists and objects; schemas nest

void check_custom_id(const std::string& name, const std::string& custom_id) {
  if (!custom_id.empty() && custom_id.size() <= kMaxCustomIdBytes) return;
  throw Refusal{kInvalid, fmt::format("{} has {} bytes; allowed is 1 to {}", name, custom_id.size(),
                                      kMaxCustomIdBytes)};
}

// Takes custom_id (or a plain line's id, which may be a number) out of the object, before all else:
// errors name it.
void take_custom_id(json& object, bool is_plain, Request& request) {
  constexpr std::string_view kPlainId = "id";
  const std::string name(is_plain && !object.contains("custom_id") ? kPlainId : "custom_id");
  if (is_plain && object.contains("id") && object.contains("custom_id")) {
    throw Refusal{kInvalid, "id and custom_id are both given; keep one"};
  }
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) {
    if (!is_plain) throw Refusal{kInvalid, "custom_id is missing; each line needs its own"};
    request.custom_id = fmt::format("line-{}", request.line_number);
  } else if (found->is_string()) {
    std::string custom_id = found->get<std::string>();
    check_custom_id(name, custom_id);
    request.custom_id = std::move(custom_id);
  } else if (name == kPlainId && found->is_number_integer()) {
    request.custom_id = found->dump();
  } else {
    throw Refusal{kInvalid, fmt::format("{} is {}; it must be a string", name, describe(*found))};
  }
  if (found != object.end()) object.erase(found);
}

std::string take_string(json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw Refusal{kInvalid, fmt::format("{} is missing", name)};
  if (!found->is_string())
    throw Refusal{kInvalid, fmt::format("{} is {}; it must be a string", name, describe(*found))};
  std::string text = found->get<std::string>();
  object.erase(found);
  return text;
}

// The envelope of an OpenAI batch line; returns its body.
json open_envelope(json& object, Request& request, RoutedLines routed) {
  request.url = take_string(object, "url");
  request.method = take_string(object, "method");
  request.is_chat = request.url == "/v1/chat/completions";
  const bool is_known = request.is_chat || request.url == "/v1/completions" ||
                        (routed != RoutedLines::kNone &&
                         (request.url == "/v1/embeddings" || request.url == "/v1/responses"));
  if (!is_known) {
    throw Refusal{kUnsupported, fmt::format("url is \"{}\"; only /v1/completions and "
                                            "/v1/chat/completions are supported",
                                            request.url.substr(0, 100))};
  }
  if (request.method != "POST") {
    throw Refusal{kUnsupported,
                  fmt::format("method is \"{}\"; it must be POST", request.method.substr(0, 100))};
  }
  const auto body = object.find("body");
  if (body == object.end() || !body->is_object())
    throw Refusal{kInvalid, "body is missing or not an object"};
  json taken = std::move(*body);
  object.erase(body);
  if (!object.empty()) {
    throw Refusal{kUnsupported, fmt::format("the field \"{}\" beside body is unknown",
                                            object.begin().key().substr(0, 100))};
  }
  return taken;
}

// Text of all that decides the answer to a request. Hashed into result files: append fields, never
// change them.
std::string key_of(const Request& request) {
  const sampling::SamplingParams& p = request.params;
  std::vector<std::string> parts{"request 1", request.custom_id, request.prompt,
                                 fmt::format("{}", fmt::join(request.prompt_ids, ","))};
  parts.push_back(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", p.temperature, p.top_k,
                              p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
                              p.frequency_penalty, p.has_seed ? p.seed : 0, p.has_seed,
                              p.max_tokens, p.min_tokens, p.ignore_eos, p.logprobs));
  parts.push_back(fmt::format("{}", fmt::join(p.stop_token_ids, ",")));
  std::string biases;
  for (const auto& [token, bias] : p.logit_bias) biases += fmt::format("{}:{},", token, bias);
  parts.push_back(std::move(biases));
  parts.insert(parts.end(), p.stop.begin(), p.stop.end());
  if (request.is_chat) parts.push_back("chat");
  if (!request.chat.empty()) parts.push_back(request.chat);
  if (p.num_beams > 1)
    parts.push_back(fmt::format("beams {} {} {}", p.num_beams, p.length_penalty,
                                static_cast<int>(p.early_stopping)));
  if (p.guide.kind != sampling::GuideKind::kNone) {
    parts.push_back(fmt::format("guide {}", static_cast<int>(p.guide.kind)));
    parts.push_back(p.guide.text);
    parts.insert(parts.end(), p.guide.choices.begin(), p.guide.choices.end());
  }
  if (p.typical_p < 1 || p.top_n_sigma > 0 || p.xtc_probability > 0)
    parts.push_back(fmt::format("filters {} {} {} {}", p.typical_p, p.top_n_sigma,
                                p.xtc_probability, p.xtc_threshold));
  if (p.mirostat != 0)
    parts.push_back(fmt::format("mirostat {} {} {}", p.mirostat, p.mirostat_tau, p.mirostat_eta));
  if (p.dry_multiplier > 0) {
    parts.push_back(fmt::format("dry {} {} {} {} {}", p.dry_multiplier, p.dry_base,
                                p.dry_allowed_length, p.dry_penalty_last_n,
                                p.dry_sequence_breakers.size()));
    parts.insert(parts.end(), p.dry_sequence_breakers.begin(), p.dry_sequence_breakers.end());
    for (const std::vector<int32_t>& breaker : p.dry_breaker_tokens)
      parts.push_back(fmt::format("{}", fmt::join(breaker, ",")));
  }
  return hash_parts(parts).hex();
}

// More than one answer.
bool has_many(const json& body, const char* name) {
  const auto found = body.find(name);
  return found != body.end() && found->is_number_integer() && *found > 1;
}

bool is_routed(const Request& request, const json& body, RoutedLines routed) {
  if (routed != RoutedLines::kMore) return routed == RoutedLines::kAll;
  return request.url == "/v1/embeddings" || request.url == "/v1/responses" || has_many(body, "n") ||
         has_many(body, "best_of");
}

// What the routes need to know of it; they read the rest.
void take_routed(const json& body, Request& request) {
  if (const auto streams = body.find("stream"); streams != body.end() && *streams == true)
    throw Refusal{kUnsupported, "stream is true; a batch has whole answers: leave it out"};
  if (const auto model = body.find("model"); model != body.end() && model->is_string())
    request.model = *model;
  if (request.url.empty())
    request.url = request.is_chat ? "/v1/chat/completions" : "/v1/completions";
  request.body = body.dump();
  const std::vector<std::string> parts{"routed 1", request.custom_id, request.url, request.body};
  request.key = hash_parts(parts).hex();
}

void check_vocabulary(const Request& request, int64_t vocab_size) {
  const auto check = [vocab_size](const char* name, int32_t token) {
    if (vocab_size <= 0 || token < vocab_size) return;
    throw Refusal{kInvalid, fmt::format("{} has token id {}; the model's are 0 to {}", name, token,
                                        vocab_size - 1)};
  };
  for (const int32_t token : request.prompt_ids) check("prompt", token);
  for (const int32_t token : request.params.stop_token_ids) check("stop_token_ids", token);
  for (const auto& [token, bias] : request.params.logit_bias) check("logit_bias", token);
}

void read_line(std::string_view line, int64_t vocab_size, RoutedLines routed, Request& request) {
  const int64_t invalid = first_invalid_utf8(line);
  if (invalid >= 0) {
    throw Refusal{"invalid_utf8",
                  fmt::format("byte {} of the line is not UTF-8; save the file as UTF-8", invalid)};
  }
  const size_t zero =
      line.find('\0');  // the parser would take it for the end and lose what follows
  if (zero != std::string_view::npos) {
    throw Refusal{"invalid_json", fmt::format("the line is not valid JSON: byte {} is zero", zero)};
  }
  json object = parse_bounded<json>(line, kMaxDepth, "the line");
  if (!object.is_object()) {
    throw Refusal{kInvalid, fmt::format("the line is {}; it must be an object", describe(object))};
  }
  const bool is_plain =
      !object.contains("body") && !object.contains("url") && !object.contains("method");
  take_custom_id(object, is_plain, request);
  if (is_plain)
    request.is_chat = object.contains("messages");
  else
    object = open_envelope(object, request, routed);
  if (is_routed(request, object, routed)) return take_routed(object, request);
  read_body(object, request);
  try {
    sampling::validate(request.params);
  } catch (const Error& error) {
    throw Refusal{kInvalid, error.what()};
  }
  check_vocabulary(request, vocab_size);
  request.key = key_of(request);
}

}  // namespace

RequestError line_error(std::string_view line, int64_t line_number, std::string custom_id,
                        std::string code, std::string message) {
  const std::vector<std::string> parts{"error 1", std::to_string(line_number), std::string(line)};
  return {std::move(custom_id), line_number, std::move(code), std::move(message),
          hash_parts(parts).hex()};
}

ParsedLine parse_request(std::string_view line, const sampling::SamplingParams& defaults,
                         int64_t line_number, int64_t vocab_size, RoutedLines routed) {
  Request request;
  request.params = defaults;
  request.line_number = line_number;
  try {
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
      throw Refusal{"line_too_long",
                    fmt::format("the line is longer than {} bytes", kMaxLineBytes)};
    }
    read_line(line, vocab_size, routed, request);
  } catch (Refusal& refusal) {
    return line_error(line, line_number, std::move(request.custom_id), std::move(refusal.code),
                      std::move(refusal.message));
  }
  return request;
}

}  // namespace sluice::jobs
