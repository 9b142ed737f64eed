#include "src/serve/ollama_answer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "src/serve/json_text.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr double kLowestLogprob = -9999;  // JSON has no infinity

std::string line(const ordered_json& object) { return dump(object) + "\n"; }

int64_t nanoseconds(http::Clock::time_point from, http::Clock::time_point to) {
  return std::max<int64_t>(0,
                           std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}
}  // namespace

std::string ollama_time() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto second = std::chrono::floor<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(second)),
                     (now - second).count());
}

ordered_json OllamaAnswer::piece(const std::string& text, const std::string& thought,
                                 ordered_json calls) {
  ordered_json out{{"model", shape().model}, {"created_at", ollama_time()}};
  if (route_ == Route::kGenerate) {
    out["response"] = text;
    if (!thought.empty()) out["thinking"] = thought;
  } else {
    ordered_json message{{"role", "assistant"}, {"content", text}};
    if (!thought.empty()) message["thinking"] = thought;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    out["message"] = std::move(message);
  }
  out["done"] = false;
  if (const auto choices = take_choices(); !choices.empty()) out["logprobs"] = logprobs(choices);
  return out;
}

ordered_json OllamaAnswer::logprobs(const std::vector<sampling::Choice>& choices) const {
  const auto entry = [&](int32_t token, float logprob) {
    const std::string text = tokenizer_.token_bytes(token);
    auto bytes = ordered_json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return ordered_json{{"token", text::mend_utf8(text)},
                        {"logprob", std::max(static_cast<double>(logprob), kLowestLogprob)},
                        {"bytes", std::move(bytes)}};
  };
  auto out = ordered_json::array();
  for (const sampling::Choice& choice : choices) {
    ordered_json one = entry(choice.token, choice.logprob);
    for (const auto& other : choice.top)
      one["top_logprobs"].push_back(entry(other.token, other.logprob));
    out.push_back(std::move(one));
  }
  return out;
}

// An array of the call; empty where it was cut short: it has no arguments that could be told.
ordered_json OllamaAnswer::call_json(size_t block) const {
  auto arguments = arguments_of(block);
  if (!arguments) return ordered_json::array();
  const Block& of = blocks()[block];
  const auto index =
      std::count_if(blocks().begin(), blocks().begin() + static_cast<std::ptrdiff_t>(block),
                    [](const Block& before) { return before.kind == Block::Kind::kCall; });
  ordered_json function{{"index", index}, {"name", of.name}, {"arguments", std::move(*arguments)}};
  return ordered_json::array({{{"id", of.id}, {"function", std::move(function)}}});
}

std::string OllamaAnswer::grown(size_t block, const std::string& more) {
  switch (blocks()[block].kind) {
    case Block::Kind::kText: return line(piece(more, {}, {}));
    case Block::Kind::kThought: return line(piece({}, more, {}));
    case Block::Kind::kCall: return {};
  }
  return {};
}

std::string OllamaAnswer::closed(size_t block) {
  if (blocks()[block].kind != Block::Kind::kCall) return {};
  ordered_json call = call_json(block);
  return call.empty() ? std::string() : line(piece({}, {}, std::move(call)));
}

ordered_json OllamaAnswer::done(ordered_json piece) const {
  const auto now = http::Clock::now();
  const auto started = started_at().value_or(now), first = first_text_at().value_or(now);
  piece["done"] = true;
  piece["done_reason"] = finish_reason() == "length" ? "length" : "stop";
  piece["total_duration"] = nanoseconds(made_at(), now);
  piece["load_duration"] = 0;  // the model was there
  piece["prompt_eval_count"] = prompt_tokens();
  piece["prompt_eval_duration"] = nanoseconds(started, first);
  piece["eval_count"] = output_tokens();
  piece["eval_duration"] = nanoseconds(first, now);
  return piece;
}

std::string OllamaAnswer::ended() { return line(done(piece({}, {}, {}))); }

std::string OllamaAnswer::failed(const ApiError& error) {
  return error_body(error, error_shape()) + "\n";
}

std::string OllamaAnswer::whole() {
  std::string text, thought;
  auto calls = ordered_json::array();
  for (size_t i = 0; i < blocks().size(); ++i) {
    const Block& block = blocks()[i];
    if (block.kind == Block::Kind::kText)
      text += block.text;
    else if (block.kind == Block::Kind::kThought)
      thought += block.text;
    else
      for (ordered_json& call : call_json(i)) calls.push_back(std::move(call));
  }
  return dump(done(piece(text, thought, std::move(calls))));
}

}  // namespace sluice::serve
