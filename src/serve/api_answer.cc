#include "src/serve/api_answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "src/serve/function_calls.h"
#include "src/serve/json_text.h"
#include "src/serve/message_json.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

int64_t characters_in(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// JSON has no -inf; OpenAI's interface writes the least a client would believe.
double finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

// The first `most`; more were computed where the prompt's scores ask for more.
std::span<const sampling::TokenLogprob> likeliest(const std::vector<sampling::TokenLogprob>& top,
                                                  int most) {
  return std::span(top).first(std::min(top.size(), static_cast<size_t>(most)));
}

ordered_json reason_json(const std::string& reason) {
  if (reason.empty()) return nullptr;
  // A prompt that was only scored ended because no token was asked for.
  return reason == "scored" ? "length" : reason == "cancelled" ? "abort" : reason;
}
}  // namespace

Answer::Answer(AnswerShape shape, const text::Tokenizer& tokenizer)
    : shape_(std::move(shape)),
      tokenizer_(tokenizer),
      samples_(static_cast<size_t>(shape_.prompts) * static_cast<size_t>(shape_.best_of)) {
  for (Sample& sample : samples_)
    sample.decoder = std::make_unique<text::StreamDecoder>(answer_decoder());
  if (!shape_.is_chat) return;
  for (Sample& sample : samples_)
    sample.reader = std::make_unique<chat::MessageReader>(shape_.form);
}

void Answer::add(const Event& event) {
  Sample& sample = samples_[static_cast<size_t>(event.index)];
  switch (event.kind) {
    case Event::Kind::kStarted: sample.cached_tokens = event.cached_tokens; break;
    case Event::Kind::kPrompt: sample.prompt = event.prompt_tokens; break;
    case Event::Kind::kText:
      sample.text += event.text;
      if (sample.reader) read(sample, sample.reader->add(event.text));
      sample.choices.insert(sample.choices.end(), event.choices.begin(), event.choices.end());
      break;
    default:
      if (sample.reader) read(sample, sample.reader->finish());
      sample.finish_reason = event.finish_reason;
      if (!sample.call_ids.empty() && event.finish_reason == "stop")
        sample.finish_reason = shape_.calls_function ? "function_call" : "tool_calls";
      sample.output_tokens = event.output_tokens;
      ++ended_;
  }
}

void Answer::read(Sample& sample, std::vector<chat::MessagePart> parts) const {
  for (chat::MessagePart& part : parts) {
    if (part.kind == chat::MessagePart::Kind::kCall)
      sample.call_ids.push_back(call_id(shape_.form, part));
    sample.parts.push_back(std::move(part));
  }
}

// A part of a message as a stream gives it.
ordered_json Answer::delta_of(const Sample& sample, const chat::MessagePart& part) const {
  using Kind = chat::MessagePart::Kind;
  switch (part.kind) {
    case Kind::kText: return {{"content", part.text}};
    case Kind::kThought: return {{"reasoning_content", part.text}};
    case Kind::kCall:
      if (shape_.calls_function)
        return {{"function_call", {{"name", part.text}, {"arguments", ""}}}};
      return {{"tool_calls",
               ordered_json::array({{{"index", part.call},
                                     {"id", sample.call_ids[static_cast<size_t>(part.call)]},
                                     {"type", "function"},
                                     {"function", {{"name", part.text}, {"arguments", ""}}}}})}};
    case Kind::kArguments:
      if (shape_.calls_function) return {{"function_call", {{"arguments", part.text}}}};
      return {{"tool_calls", ordered_json::array({{{"index", part.call},
                                                   {"function", {{"arguments", part.text}}}}})}};
  }
  return nullptr;
}

std::string Answer::token_name(int32_t id) const {
  return text::mend_utf8(tokenizer_.token_bytes(id));
}

ordered_json Answer::chat_logprobs(const std::vector<sampling::Choice>& choices) const {
  auto content = ordered_json::array();
  const auto entry = [&](int32_t id, float logprob) {
    auto bytes = ordered_json::array();
    for (char c : tokenizer_.token_bytes(id)) bytes.push_back(static_cast<unsigned char>(c));
    return ordered_json{{"token", token_name(id)}, {"logprob", finite(logprob)}, {"bytes", bytes}};
  };
  for (const sampling::Choice& choice : choices) {
    ordered_json token = entry(choice.token, choice.logprob);
    token["top_logprobs"] = ordered_json::array();
    for (const auto& other : likeliest(choice.top, shape_.most_top))
      token["top_logprobs"].push_back(entry(other.token, other.logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

// Tokens of a prompt and where each begins in its text, which was given or is what ids decode to. A
// token in front that the text does not have (the beginning of all texts) takes no room in it; nor
// does the space that a sentencepiece model puts there.
Answer::Offsets Answer::prompt_offsets(const std::vector<sampling::Choice>& prompt,
                                       const std::string& text) const {
  Offsets out;
  text::StreamDecoder decoder(tokenizer_, text::SkipSpecial::kNo);
  std::string decoded;
  for (const sampling::Choice& token : prompt) {
    const bool is_in_front = decoded.empty() && tokenizer_.is_special(token.token) &&
                             !text.starts_with(tokenizer_.token_bytes(token.token));
    out.tokens.push_back(characters_in(decoded));
    if (!is_in_front) decoded += decoder.push(token.token);
  }
  out.end = characters_in(text);
  for (int64_t& offset : out.tokens) offset = std::min(offset, out.end);
  return out;
}

// `offset`: of the first choice in the answer's text, in characters; moved behind the last.
ordered_json Answer::completion_logprobs(const std::vector<sampling::Choice>& prompt,
                                         const std::string& prompt_text,
                                         const std::vector<sampling::Choice>& choices,
                                         text::StreamDecoder& decoder, int64_t& offset) const {
  auto tokens = ordered_json::array(), logprobs = tokens, tops = tokens, offsets = tokens;
  const auto add = [&](int32_t id, int64_t at, float logprob,
                       const std::vector<sampling::TokenLogprob>& top) {
    const std::string name = token_name(id);
    tokens.push_back(name);
    offsets.push_back(at);
    if (std::isnan(logprob)) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      return;
    }
    logprobs.push_back(finite(logprob));
    ordered_json named = ordered_json::object();
    for (const auto& other : likeliest(top, shape_.most_top))
      named[token_name(other.token)] = finite(other.logprob);
    if (!named.contains(name)) named[name] = finite(logprob);
    tops.push_back(std::move(named));
  };
  const Offsets before = prompt_offsets(prompt, prompt_text);
  for (size_t i = 0; i < prompt.size(); ++i)
    add(prompt[i].token, before.tokens[i], prompt[i].logprob, prompt[i].top);
  if (!prompt.empty()) offset = before.end;
  for (const sampling::Choice& choice : choices) {
    add(choice.token, offset, choice.logprob, choice.top);
    offset += characters_in(decoder.push(choice.token));
  }
  return {{"tokens", tokens},
          {"token_logprobs", logprobs},
          {"top_logprobs", tops},
          {"text_offset", offsets}};
}

// As vLLM has it: of each token of the prompt but the first an object of the likeliest there and
// the token itself, by their ids. Its rank is known where it is one of these.
ordered_json Answer::prompt_logprobs(const std::vector<sampling::Choice>& prompt) const {
  auto out = ordered_json::array();
  for (const sampling::Choice& token : prompt) {
    if (std::isnan(token.logprob)) {
      out.push_back(nullptr);
      continue;
    }
    ordered_json entries = ordered_json::object();
    const auto add = [&](int32_t id, float logprob, const ordered_json& rank) {
      const std::string key = std::to_string(id);
      if (!entries.contains(key))
        entries[key] = {
            {"logprob", finite(logprob)}, {"rank", rank}, {"decoded_token", token_name(id)}};
    };
    int rank = 0;
    for (const auto& other : likeliest(token.top, shape_.prompt_top))
      add(other.token, other.logprob, ++rank);
    add(token.token, token.logprob, nullptr);
    out.push_back(std::move(entries));
  }
  return out;
}

ordered_json Answer::usage() const {
  int64_t prompt = 0, cached = 0, output = 0;
  for (const auto& ids : shape_.prompt_ids) prompt += static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < samples_.size(); ++i) {
    output += samples_[i].output_tokens;
    if (i % static_cast<size_t>(shape_.best_of) == 0) cached += samples_[i].cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", output},
          {"total_tokens", prompt + output},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

ordered_json Answer::head(const char* object) const {
  return {
      {"id", shape_.id}, {"object", object}, {"created", shape_.created}, {"model", shape_.model}};
}

std::string Answer::chunk(const ordered_json& choice) const {
  ordered_json out = head(shape_.is_chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = ordered_json::array({choice});
  if (shape_.includes_usage) out["usage"] = nullptr;
  return "data: " + dump(out) + "\n\n";
}

std::string Answer::stream_of(const Event& event) {
  Sample& sample = samples_[static_cast<size_t>(event.index)];
  std::string out;
  const auto send_delta = [&](const ordered_json& delta, const ordered_json& logprobs,
                              const ordered_json& reason) {
    out += chunk({{"index", event.index},
                  {"delta", delta},
                  {"logprobs", logprobs},
                  {"finish_reason", reason}});
  };
  const auto send = [&](const std::string& text, const ordered_json& logprobs,
                        const ordered_json& reason) {
    out += chunk({{"index", event.index},
                  {"text", text},
                  {"logprobs", logprobs},
                  {"finish_reason", reason}});
  };
  // The prompt is scored with the first of its samples.
  const bool scores_prompt = shape_.has_logprobs && event.index % shape_.best_of == 0;
  if (!std::exchange(sample.has_begun, true)) {
    if (shape_.is_chat)
      send_delta({{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    else if (shape_.echoes && !scores_prompt)
      send(echoed(event.index), nullptr, nullptr);
    if (!shape_.is_chat && shape_.echoes) sample.text_offset = characters_in(echoed(event.index));
  }
  if (event.kind == Event::Kind::kPrompt && shape_.echoes)
    send(echoed(event.index),
         completion_logprobs(event.prompt_tokens, echoed(event.index), {}, *sample.decoder,
                             sample.text_offset),
         nullptr);
  const bool has_text = event.kind == Event::Kind::kText;
  const bool is_last = event.kind == Event::Kind::kFinished;
  if (shape_.is_chat) {
    // The tokens' log-probabilities go with the first part that they have led to.
    ordered_json logprobs = nullptr;
    if (has_text && shape_.has_logprobs) logprobs = chat_logprobs(event.choices);
    if (!logprobs.is_null() && sample.streamed == sample.parts.size())
      send_delta(ordered_json::object(), std::exchange(logprobs, nullptr), nullptr);
    while (sample.streamed < sample.parts.size())
      send_delta(delta_of(sample, sample.parts[sample.streamed++]),
                 std::exchange(logprobs, nullptr), nullptr);
    if (is_last) send_delta(ordered_json::object(), nullptr, reason_json(sample.finish_reason));
    return out;
  }
  if (has_text)
    send(event.text,
         shape_.has_logprobs
             ? completion_logprobs({}, {}, event.choices, *sample.decoder, sample.text_offset)
             : ordered_json(nullptr),
         nullptr);
  if (is_last) send("", nullptr, reason_json(sample.finish_reason));
  return out;
}

std::string Answer::stream_error(const ApiError& error) {
  return "data: " + error.body() + "\n\ndata: [DONE]\n\n";
}

std::string Answer::stream_end() {
  std::string out;
  if (shape_.includes_usage) {
    ordered_json last = head(shape_.is_chat ? "chat.completion.chunk" : "text_completion");
    last["choices"] = ordered_json::array();
    last["usage"] = usage();
    out = "data: " + dump(last) + "\n\n";
  }
  return out + "data: [DONE]\n\n";
}

// The samples that are answered: of each prompt the likeliest by mean log-probability, or all.
std::vector<size_t> Answer::chosen() const {
  std::vector<size_t> out;
  const auto best_of = static_cast<size_t>(shape_.best_of);
  const auto mean = [&](size_t sample) {
    double sum = 0;
    for (const auto& choice : samples_[sample].choices) sum += choice.logprob;
    return sum / static_cast<double>(std::max<size_t>(samples_[sample].choices.size(), 1));
  };
  for (size_t first = 0; first < samples_.size(); first += best_of) {
    std::vector<size_t> of_prompt(best_of);
    std::iota(of_prompt.begin(), of_prompt.end(), first);
    if (shape_.best_of > shape_.samples)
      std::stable_sort(of_prompt.begin(), of_prompt.end(),
                       [&](size_t a, size_t b) { return mean(a) > mean(b); });
    of_prompt.resize(static_cast<size_t>(shape_.samples));
    out.insert(out.end(), of_prompt.begin(), of_prompt.end());
  }
  return out;
}

std::string Answer::whole() {
  ordered_json out = head(shape_.is_chat ? "chat.completion" : "text_completion");
  out["choices"] = ordered_json::array();
  for (size_t index : chosen()) {
    const Sample& sample = samples_[index];
    ordered_json choice{{"index", out["choices"].size()}};
    // The prompt is scored once, with the first of its samples.
    const Sample& first = samples_[index - index % static_cast<size_t>(shape_.best_of)];
    if (shape_.is_chat) {
      ordered_json message = message_json(sample.parts, sample.call_ids);
      choice["message"] = shape_.calls_function ? with_function_call(std::move(message)) : message;
      choice["logprobs"] =
          shape_.has_logprobs ? chat_logprobs(sample.choices) : ordered_json(nullptr);
    } else {
      int64_t offset = 0;
      const std::string echo = shape_.echoes ? echoed(static_cast<int>(index)) : "";
      choice["text"] = echo + (shape_.generates ? sample.text : "");
      auto decoder = answer_decoder();
      choice["logprobs"] =
          shape_.has_logprobs
              ? completion_logprobs(shape_.echoes ? first.prompt : std::vector<sampling::Choice>{},
                                    echo, sample.choices, decoder, offset)
              : ordered_json(nullptr);
      if (shape_.prompt_top >= 0) choice["prompt_logprobs"] = prompt_logprobs(first.prompt);
    }
    choice["finish_reason"] = reason_json(sample.finish_reason);
    out["choices"].push_back(std::move(choice));
  }
  out["usage"] = usage();
  if (shape_.is_chat && shape_.prompt_top >= 0)
    out["prompt_logprobs"] = prompt_logprobs(samples_.front().prompt);
  if (!shape_.warnings.empty()) out["warnings"] = shape_.warnings;
  return dump(out);
}

}  // namespace sluice::serve
