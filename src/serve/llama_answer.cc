#include "src/serve/llama_answer.h"

#include <algorithm>
#include <utility>

#include "src/serve/json_text.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

std::string event_of(const ordered_json& data) { return "data: " + dump(data) + "\n\n"; }

const char* stop_type(const std::string& reason, const std::string& stop_string) {
  if (reason == "stop") return stop_string.empty() ? "eos" : "word";
  return reason == "length" || reason == "scored" ? "limit" : "none";
}

double milliseconds_between(http::Clock::time_point from, http::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double, std::milli>(to - from).count());
}
}  // namespace

LlamaAnswer::LlamaAnswer(AnswerShape shape, const LlamaRequest& request,
                         const text::Tokenizer& tokenizer)
    : shape_(std::move(shape)),
      prompt_(request.prompt),
      settings_(request.settings),
      returns_tokens_(request.returns_tokens),
      tokenizer_(tokenizer),
      samples_(static_cast<size_t>(shape_.prompts)) {
  for (Sample& sample : samples_) sample.started = sample.first = sample.ended = Clock::now();
}

void LlamaAnswer::add(const Event& event) {
  Sample& sample = samples_[static_cast<size_t>(event.index)];
  switch (event.kind) {
    case Event::Kind::kStarted:
      sample.cached_tokens = event.cached_tokens;
      sample.started = sample.first = Clock::now();
      break;
    case Event::Kind::kText:
      if (sample.choices.empty() && sample.text.empty()) sample.first = Clock::now();
      sample.text += event.text;
      sample.choices.insert(sample.choices.end(), event.choices.begin(), event.choices.end());
      break;
    case Event::Kind::kPrompt: break;
    default:
      sample.finish_reason = event.finish_reason;
      sample.stop_string = event.stop_string;
      sample.output_tokens = event.output_tokens;
      sample.ended = Clock::now();
      ++ended_;
  }
}

ordered_json LlamaAnswer::probabilities(const std::vector<sampling::Choice>& choices) const {
  const auto entry = [&](int32_t token, float logprob) {
    const std::string bytes = tokenizer_.token_bytes(token);
    auto numbers = ordered_json::array();
    for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
    return ordered_json{{"id", token},
                        {"token", text::mend_utf8(bytes)},
                        {"bytes", std::move(numbers)},
                        {"logprob", std::max(static_cast<double>(logprob), -9999.0)}};
  };
  auto out = ordered_json::array();
  for (const sampling::Choice& choice : choices) {
    ordered_json one = entry(choice.token, choice.logprob);
    one["top_logprobs"] = ordered_json::array();
    for (const auto& other : choice.top)
      one["top_logprobs"].push_back(entry(other.token, other.logprob));
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json LlamaAnswer::piece(size_t index, const std::string& text,
                                const std::vector<sampling::Choice>& choices) const {
  auto tokens = ordered_json::array();
  for (const sampling::Choice& choice : choices) tokens.push_back(choice.token);
  ordered_json out{{"index", index},
                   {"content", shape_.generates ? text : std::string()},
                   {"tokens", std::move(tokens)},
                   {"stop", false},
                   {"id_slot", 0},
                   {"tokens_predicted", samples_[index].choices.size()},
                   {"tokens_evaluated", shape_.prompt_ids[index].size()}};
  if (shape_.has_logprobs) out["completion_probabilities"] = probabilities(choices);
  return out;
}

ordered_json LlamaAnswer::timings(const Sample& sample, int64_t prompt_tokens) const {
  const auto rates = [](const std::string& name, int64_t count, double took, ordered_json& out) {
    const auto number = static_cast<double>(count);
    out[name + "_n"] = count;
    out[name + "_ms"] = took;
    out[name + "_per_token_ms"] = count > 0 ? ordered_json(took / number) : ordered_json(nullptr);
    out[name + "_per_second"] =
        took > 0 ? ordered_json(1000 * number / took) : ordered_json(nullptr);
  };
  ordered_json out{{"cache_n", sample.cached_tokens}};
  rates("prompt", prompt_tokens - sample.cached_tokens,
        milliseconds_between(sample.started, sample.first), out);
  rates("predicted", shape_.generates ? sample.output_tokens : 0,
        milliseconds_between(sample.first, sample.ended), out);
  return out;
}

ordered_json LlamaAnswer::last(size_t index, const std::string& text,
                               const std::vector<sampling::Choice>& choices) const {
  const Sample& sample = samples_[index];
  const auto evaluated = static_cast<int64_t>(shape_.prompt_ids[index].size());
  ordered_json out = piece(index, text, choices);
  out["stop"] = true;
  out["model"] = shape_.model;
  out["tokens_predicted"] = shape_.generates ? sample.output_tokens : 0;
  out["generation_settings"] = settings_;
  out["prompt"] = shape_.prompts > 1 ? prompt_[index] : prompt_;
  out["has_new_line"] = sample.text.find('\n') != std::string::npos;
  out["truncated"] = false;
  out["stop_type"] =
      shape_.generates ? stop_type(sample.finish_reason, sample.stop_string) : "limit";
  out["stopping_word"] = sample.stop_string;
  out["tokens_cached"] = sample.cached_tokens;
  out["timings"] = timings(sample, evaluated);
  return out;
}

std::string LlamaAnswer::stream_of(const Event& event) {
  const auto index = static_cast<size_t>(event.index);
  switch (event.kind) {
    case Event::Kind::kText:
      return shape_.generates ? event_of(piece(index, event.text, event.choices)) : std::string();
    case Event::Kind::kFinished: return event_of(last(index, "", {}));
    default: return {};
  }
}

std::string LlamaAnswer::stream_error(const ApiError& error) {
  return "data: " + error.body() + "\n\n";
}

std::string LlamaAnswer::whole() {
  auto all = ordered_json::array();
  for (size_t index = 0; index < samples_.size(); ++index) {
    ordered_json one = last(index, samples_[index].text, samples_[index].choices);
    if (!returns_tokens_) one["tokens"] = ordered_json::array();
    all.push_back(std::move(one));
  }
  return dump(prompt_.is_array() && !prompt_.empty() && all.size() > 1 ? all : all.front());
}

}  // namespace sluice::serve
