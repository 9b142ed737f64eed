#include "src/serve/text_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/jobs/wishes.h"
#include "src/serve/api_request.h"
#include "src/serve/file_store.h"
#include "src/serve/json_text.h"
#include "src/serve/live_generation.h"
#include "src/text/utf8.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr int64_t kLeastLongest = 16;  // bytes: unknown characters in a row may be one token
constexpr int64_t kMostTokenizedBytes = 1 << 20;  // of /tokenize, or what the context may hold

text::AddSpecial special(bool adds) {
  return adds ? text::AddSpecial::kYes : text::AddSpecial::kNo;
}

void set_logprobs(const ApiRequest& call, AnswerShape& shape) {
  shape.has_logprobs = call.params.logprobs >= 0;
  shape.most_top = std::max(call.params.logprobs, 0);
  shape.prompt_top = call.prompt_logprobs;
}

// Bytes that a prompt of `context` tokens may have, at most.
int64_t most_bytes(const text::Tokenizer& tokenizer, int64_t context) {
  int64_t longest = kLeastLongest;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, static_cast<int64_t>(tokenizer.token_bytes(id).size()));
  return (context + 1) * longest;
}
}  // namespace

TextRoutes::TextRoutes(GenerationService& service, const text::Tokenizer& tokenizer,
                       const chat::ChatTemplate* chat, const HttpOptions& options)
    : service_(service),
      tokenizer_(tokenizer),
      chat_(chat),
      options_(options),
      most_prompt_bytes_(most_bytes(tokenizer, service.engine().context_tokens())) {}

AdapterPtr TextRoutes::model_of(const std::string& model) const {
  if (model.empty() || options_.names(model)) return nullptr;
  if (AdapterPtr adapter = service_.adapters().find(model)) return adapter;
  if (options_.takes_any_name) return nullptr;
  std::string names = fmt::format("\"{}\"", options_.model_name);
  for (const std::string& one : options_.aliases) names += fmt::format(", \"{}\"", one);
  for (const AdapterPtr& one : service_.adapters().list())
    names += fmt::format(", \"{}\"", one->name);
  throw ApiError{404,
                 fmt::format("the model \"{}\" is not served here; this server has {}",
                             model.substr(0, 200), names),
                 "model_not_found", "model", 0};
}

void TextRoutes::check_room() const {
  if (service_.is_full())
    throw ApiError{429, "too many requests are waiting; try again later", "", "",
                   service_.retry_after_seconds()};
}

std::vector<int32_t> TextRoutes::encode(const std::string& text, text::AddSpecial adds_special,
                                        const char* param, bool is_truncated) const {
  const int64_t most = std::max(kMostTokenizedBytes, most_prompt_bytes_);
  if (is_truncated && static_cast<int64_t>(text.size()) > most)
    throw ApiError{400,
                   fmt::format("the prompt has {} bytes; of one that is truncated at most {} are "
                               "read: shorten it",
                               text.size(), most),
                   "context_length_exceeded", param, 0};
  if (!is_truncated && static_cast<int64_t>(text.size()) > most_prompt_bytes_)
    throw ApiError{400,
                   fmt::format("this model's maximum context length is {} tokens as it is served, "
                               "which are at most {} bytes of "
                               "text; the prompt has {}: shorten it",
                               service_.engine().context_tokens(), most_prompt_bytes_, text.size()),
                   "context_length_exceeded", param, 0};
  return tokenizer_.encode(text, adds_special);
}

// Tokens that may follow the prompt.
int64_t TextRoutes::room_for(const std::vector<int32_t>& prompt, bool generates,
                             const char* param) const {
  const int64_t context = service_.engine().context_tokens();
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0) throw ApiError{400, "the prompt has no tokens; give at least one", "", param, 0};
  if (length + (generates ? 1 : 0) > context)
    throw ApiError{
        400,
        // Clients look for the first words, as OpenAI has them.
        fmt::format("this model's maximum context length is {} tokens as it is served; the prompt "
                    "has {}: shorten it{}",
                    context, length,
                    service_.engine().model().shape().max_positions > context
                        ? ", or start the server with a larger context"
                        : ""),
        "context_length_exceeded", param, 0};
  return context - length;
}

// The last tokens that the request keeps of its prompt.
void TextRoutes::truncate(const ApiRequest& call, std::vector<int32_t>& prompt) const {
  if (call.kept_prompt_tokens == 0) return;
  const int64_t context = service_.engine().context_tokens();
  const int64_t generated = call.has_max_tokens ? call.params.max_tokens : 1;
  const int64_t most = call.kept_prompt_tokens > 0 ? call.kept_prompt_tokens
                                                   : std::max<int64_t>(context - generated, 1);
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > most) prompt.erase(prompt.begin(), prompt.end() - most);
}

ChatPrompt TextRoutes::prompt_of(const ChatRequest& call) const {
  if (!options_.takes_templates) refuse_own_template(call);
  return chat_prompt(call, chat_, tokenizer_, options_.tool_format, options_.splits_thoughts);
}

Submission TextRoutes::submission_of(const CompletionRequest& call,
                                     std::vector<int32_t> prompt) const {
  Submission one;
  one.prompt = std::move(prompt);
  one.params = call.params;
  // The likeliest of best_of are found by their log-probabilities.
  if (call.best_of > call.samples) one.params.logprobs = std::max(one.params.logprobs, 0);
  one.samples = call.best_of;
  one.scores_prompt = (call.echoes && call.params.logprobs >= 0) || call.prompt_logprobs >= 0;
  one.params.logprobs = std::max(one.params.logprobs, call.prompt_logprobs);
  // Without a token to generate and without scores there is nothing to compute but the echo; one
  // token is computed and left out.
  one.generates = call.generates || !one.scores_prompt;
  one.priority = call.priority;
  one.stops_are_kept = call.keeps_stop;
  one.keeps_tokens = call.keeps_tokens;
  return one;
}

std::unique_ptr<AnswerForm> TextRoutes::openai_form(AnswerShape shape) const {
  return std::make_unique<Answer>(std::move(shape), tokenizer_);
}

void TextRoutes::complete(const http::Request& request, http::Response& response) const {
  check_room();
  complete(
      parse_completion(request.body, options_.defaults, vocab_size()),
      [this](AnswerShape shape) { return openai_form(std::move(shape)); }, response);
}

void TextRoutes::complete(const CompletionRequest& call, const FormMaker& make,
                          http::Response& response) const {
  const int64_t vocab = vocab_size();
  const AdapterPtr adapter = model_of(call.model);
  const auto prompts = static_cast<int64_t>(call.prompts.size());
  AnswerShape shape;
  shape.id = random_name("cmpl-");
  shape.prompts = static_cast<int>(prompts);
  shape.samples = call.samples;
  shape.best_of = call.best_of;
  set_logprobs(call, shape);
  shape.includes_usage = call.includes_usage;
  shape.echoes = call.echoes;
  shape.generates = call.generates;
  std::vector<Submission> submissions;
  for (const auto& prompt : call.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    std::vector<int32_t> ids = text ? encode(*text, special(call.adds_special.value_or(true)),
                                             "prompt", call.kept_prompt_tokens != 0)
                                    : std::get<std::vector<int32_t>>(prompt);
    for (int32_t id : ids)
      if (id >= vocab)
        throw ApiError{
            400, fmt::format("prompt has token id {}; the model's are 0 to {}", id, vocab - 1), "",
            "prompt", 0};
    const size_t whole = ids.size();
    truncate(call, ids);
    const int64_t room = room_for(ids, call.generates, "prompt");
    shape.prompt_ids.push_back(ids);
    if (call.echoes)
      shape.prompt_texts.push_back(
          text && ids.size() == whole ? *text : tokenizer_.decode(ids, text::SkipSpecial::kNo));
    submissions.push_back(submission_of(call, std::move(ids)));
    if (call.fills_context && !call.has_max_tokens)
      submissions.back().params.max_tokens = static_cast<int>(room);
  }
  start(std::move(submissions), adapter, std::move(shape), call.streams, call.guide_field, make,
        response);
}

void TextRoutes::chat_complete(const http::Request& request, http::Response& response) const {
  check_room();
  chat(
      parse_chat(request.body, options_.defaults, vocab_size()),
      [this](AnswerShape shape) { return openai_form(std::move(shape)); }, response);
}

std::vector<int32_t> TextRoutes::ids_of(const ChatRequest& call, const ChatPrompt& prompt) const {
  // The template writes the special tokens itself.
  std::vector<int32_t> ids = encode(prompt.text, special(call.adds_special.value_or(false)),
                                    "messages", call.kept_prompt_tokens != 0);
  truncate(call, ids);
  return ids;
}

int64_t TextRoutes::count_tokens(const ChatRequest& call) const {
  model_of(call.model);
  return static_cast<int64_t>(ids_of(call).size());
}

void TextRoutes::chat(const ChatRequest& call, const FormMaker& make,
                      http::Response& response) const {
  const AdapterPtr adapter = model_of(call.model);
  const ChatPrompt prompt = prompt_of(call);
  Submission one;
  one.params = call.params;
  if (prompt.guide.kind != sampling::GuideKind::kNone) {
    one.params.guide = prompt.guide;
    sampling::validate(one.params);
  }
  one.keeps_special = prompt.keeps_special;
  one.keeps_tokens = prompt.form.has_thoughts;  // they are counted
  one.prompt = ids_of(call, prompt);
  const int64_t room = room_for(one.prompt, true, "messages");
  if (!call.has_max_tokens)
    one.params.max_tokens = static_cast<int>(std::max<int64_t>(room, one.params.min_tokens));
  one.samples = call.samples;
  one.scores_prompt = call.prompt_logprobs >= 0;
  one.params.logprobs = std::max(one.params.logprobs, call.prompt_logprobs);
  one.priority = call.priority;
  one.stops_are_kept = call.keeps_stop;
  AnswerShape shape;
  shape.is_chat = true;
  shape.form = prompt.form;
  shape.calls_function = call.calls_function;
  shape.id = random_name("chatcmpl-");
  shape.samples = shape.best_of = call.samples;
  shape.max_tokens = one.params.max_tokens;
  set_logprobs(call, shape);
  shape.includes_usage = call.includes_usage;
  shape.prompt_ids = {one.prompt};
  std::vector<Submission> submissions;
  submissions.push_back(std::move(one));
  start(std::move(submissions), adapter, std::move(shape), call.streams,
        call.callable.empty() ? call.guide_field : "tools", make, response);
}

void TextRoutes::start(std::vector<Submission> submissions, const AdapterPtr& adapter,
                       AnswerShape shape, bool streams, const std::string& guide_field,
                       const FormMaker& make, http::Response& response) const {
  for (Submission& one : submissions) {
    one.adapter = adapter;
    one.caller = AnsweredCaller::now();
    if (AnsweredCaller::is_batch()) one.priority = kBatchPriority;
  }
  const int64_t tokens = GenerationService::tokens_of(submissions);
  shape.model = adapter ? adapter->name : options_.model_name;
  shape.created = std::time(nullptr);
  LiveGeneration::Options how;
  how.streams = streams;
  // Where others wait before it, a caller sees that the request was taken.
  how.begins_at_once = service_.waiting() > 0;
  if (!AnsweredCaller::is_batch()) how.request_time = options_.request_timeout;
  GenerationService::Admission admission;
  try {
    admission = service_.submit(std::move(submissions));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUser) throw;
    throw ApiError{400, error.text(), "", guide_field, 0};
  }
  if (admission.outcome == RequestQueue::Outcome::kFull)
    throw ApiError{429, "too many requests are waiting; try again later", "", "",
                   service_.retry_after_seconds()};
  if (admission.outcome == RequestQueue::Outcome::kOverShare) {
    const int64_t most = service_.most_caller_tokens();
    if (tokens > most)
      throw ApiError{400,
                     fmt::format("prompts and answers may have {} tokens here together, and one "
                                 "caller's {}: lower max_tokens or n, or send it in parts",
                                 tokens, most),
                     "", "max_tokens", 0};
    throw ApiError{429,
                   fmt::format("your requests that wait or run would have more than {} tokens "
                               "together, prompts and answers: try again when one has ended",
                               most),
                   "rate_limit_exceeded", "", service_.retry_after_seconds()};
  }
  if (admission.outcome == RequestQueue::Outcome::kClosed) {
    const std::string failure = service_.failure();
    throw ApiError{
        503, failure.empty() ? "the server is shutting down" : "the engine has stopped: " + failure,
        "", "", 0};
  }
  for (std::string& one : jobs::Wishes::take()) shape.warnings.push_back(std::move(one));
  for (const std::string& one : admission.relaxed)
    shape.warnings.push_back("the guide does not hold all: " + one);
  how.warnings = shape.warnings;
  response.live = std::make_shared<LiveGeneration>(std::move(admission.ticket),
                                                   make(std::move(shape)), std::move(how));
}

void TextRoutes::tokenize(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  std::vector<int32_t> ids;
  const auto flag = [&](const char* name, bool fallback) {
    if (!body.contains(name) || body[name].is_null()) return fallback;
    if (!body[name].is_boolean())
      throw ApiError{400, fmt::format("{} must be true or false", name), "", name, 0};
    return body[name].get<bool>();
  };
  if (body.contains("messages")) {
    ordered_json chat;
    for (const char* name : {"messages", "add_generation_prompt", "continue_final_message",
                             "chat_template", "chat_template_kwargs", "documents", "tools"})
      if (body.contains(name)) chat[name] = body[name];
    ChatRequest call = parse_chat(dump(chat), options_.defaults, vocab_size());
    call.callable.clear();  // nothing is called
    ids = encode(prompt_of(call).text, special(flag("add_special_tokens", false)), "messages");
  } else {
    const char* field = body.contains("prompt") ? "prompt" : "content";  // vLLM's name, llama.cpp's
    if (!body.contains(field) || !body[field].is_string())
      throw ApiError{400, "give \"prompt\", a string, or \"messages\"", "", "prompt", 0};
    const auto& text = body[field].get_ref<const std::string&>();
    const int64_t most = std::max(kMostTokenizedBytes, most_prompt_bytes_);
    if (static_cast<int64_t>(text.size()) > most)
      throw ApiError{
          400,
          fmt::format("{} has {} bytes; at most {} are tokenised at once: send it in parts", field,
                      text.size(), most),
          "", field, 0};
    ids = tokenizer_.encode(text, special(flag("add_special_tokens", true)));
  }
  response.set_content(dump({{"count", ids.size()},
                             {"max_model_len", service_.engine().context_tokens()},
                             {"tokens", ids}}),
                       "application/json");
}

void TextRoutes::tokenizer_info(http::Response& response) const {
  const auto name_of = [this](std::optional<int32_t> id) {
    return id ? ordered_json(text::mend_utf8(tokenizer_.token_bytes(*id))) : ordered_json(nullptr);
  };
  const std::vector<int32_t>& ends = service_.engine().model().eos_token_ids();
  const ordered_json out{
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"vocab_size", tokenizer_.vocab_size()},
      {"model_max_length", service_.engine().context_tokens()},
      {"bos_token", name_of(tokenizer_.bos())},
      {"eos_token", name_of(ends.empty() ? std::nullopt : std::optional(ends.front()))},
      {"chat_template", chat_ ? ordered_json(chat_->source().text) : ordered_json(nullptr)}};
  response.set_content(dump(out), "application/json");
}

void TextRoutes::detokenize(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  if (!body.contains("tokens") || !body["tokens"].is_array())
    throw ApiError{400, "give \"tokens\", a list of token ids", "", "tokens", 0};
  const int64_t vocab = service_.engine().model().shape().vocab_size;
  std::vector<int32_t> ids;
  for (const ordered_json& id : body["tokens"]) {
    if (!id.is_number_integer() || id < 0 || id >= vocab)
      throw ApiError{400, fmt::format("tokens must be a list of token ids, 0 to {}", vocab - 1), "",
                     "tokens", 0};
    ids.push_back(id.get<int32_t>());
  }
  const std::string text = tokenizer_.decode(ids, text::SkipSpecial::kNo);
  response.set_content(dump({{"prompt", text}, {"content", text}}), "application/json");
}

}  // namespace sluice::serve
