#include "src/serve/embedding_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/error.h"
#include "src/serve/embedding_request.h"
#include "src/serve/file_store.h"
#include "src/serve/json_text.h"
#include "src/serve/ollama_request.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// In as few digits as say which f32 it is.
ordered_json numbers(std::span<const float> values) {
  auto out = ordered_json::array();
  for (const float value : values)
    out.push_back(std::strtod(fmt::format("{}", value).c_str(), nullptr));
  return out;
}

class EmbeddingAnswer final : public AnswerForm {
 public:
  EmbeddingAnswer(AnswerShape shape, EmbeddingRequest request, EmbeddingRoute route)
      : shape_(std::move(shape)),
        request_(std::move(request)),
        route_(route),
        embeddings_(shape_.prompt_ids.size()) {}

  void add(const Event& event) override {
    if (event.kind == Event::Kind::kPrompt) {
      std::vector<float> all = event.embedding;
      if (request_.dimensions > 0) all.resize(static_cast<size_t>(request_.dimensions));
      if (*request_.is_normalised) normalise(all);
      embeddings_[static_cast<size_t>(event.index)] = std::move(all);
    }
    if (event.is_last()) ++ended_;
  }
  std::string stream_of(const Event&) override { return {}; }
  std::string stream_end() override { return {}; }
  std::string stream_error(const ApiError& error) override { return error.body(); }
  bool is_complete() const noexcept override { return ended_ == embeddings_.size(); }
  ErrorShape error_shape() const noexcept override {
    return is_ollama(route_) ? ErrorShape::kOllama : ErrorShape::kOpenAi;
  }
  std::string whole() override {
    switch (route_) {
      case EmbeddingRoute::kOpenAi: return dump(openai());
      case EmbeddingRoute::kOllama: return dump(ollama());
      case EmbeddingRoute::kOllamaOne: return dump({{"embedding", numbers(embeddings_.front())}});
      case EmbeddingRoute::kLlama: break;
    }
    auto out = ordered_json::array();
    for (size_t i = 0; i < embeddings_.size(); ++i)
      out.push_back({{"index", i}, {"embedding", ordered_json::array({numbers(embeddings_[i])})}});
    return dump(out);
  }

 private:
  size_t tokens() const {
    size_t tokens = 0;
    for (const auto& ids : shape_.prompt_ids) tokens += ids.size();
    return tokens;
  }
  ordered_json openai() const {
    auto data = ordered_json::array();
    for (size_t i = 0; i < embeddings_.size(); ++i) {
      const std::vector<float>& row = embeddings_[i];
      ordered_json embedding;
      if (request_.is_base64)
        embedding = base64_of({reinterpret_cast<const char*>(row.data()), row.size() * 4});
      else
        embedding = numbers(row);
      data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(embedding)}});
    }
    return {{"object", "list"},
            {"data", std::move(data)},
            {"model", shape_.model},
            {"usage", {{"prompt_tokens", tokens()}, {"total_tokens", tokens()}}}};
  }
  ordered_json ollama() const {
    auto all = ordered_json::array();
    for (const auto& row : embeddings_) all.push_back(numbers(row));
    return {{"model", shape_.model},
            {"embeddings", std::move(all)},
            {"total_duration", (Clock::now() - started_) / std::chrono::nanoseconds(1)},
            {"load_duration", 0},
            {"prompt_eval_count", tokens()}};
  }

  const AnswerShape shape_;
  const EmbeddingRequest request_;
  const EmbeddingRoute route_;
  const Clock::time_point started_ = Clock::now();
  std::vector<std::vector<float>> embeddings_;  // [inputs]
  size_t ended_ = 0;
};

/// What the routes share: the model's own way, or why it can't be followed.
struct Embedder {
  Embedder(const TextRoutes& of, const text::Tokenizer& with) : texts(of), tokenizer(with) {
    try {
      form = read_embedding_form(texts.service().engine().model().checkpoint().folder(),
                                 hidden_size());
    } catch (const Error& error) {
      refusal = error.text();
    }
  }
  int64_t hidden_size() const { return texts.service().engine().model().shape().hidden_size; }
  int64_t context() const { return texts.service().engine().context_tokens(); }
  void complete(EmbeddingRequest& request) const;
  std::vector<int32_t> ids_of(const EmbeddingRequest& request, size_t index) const;
  void answer(const http::Request& body, EmbeddingRoute route, http::Response& response) const;

  const TextRoutes& texts;
  const text::Tokenizer& tokenizer;
  EmbeddingForm form;
  std::string refusal;
};

// With what the model says where the request says nothing.
void Embedder::complete(EmbeddingRequest& request) const {
  if (request.pooling == Pooling::kNone) {
    if (!refusal.empty())
      throw ApiError{400, "this model's embeddings are not done here: " + refusal, "unsupported",
                     "model", 0};
    request.pooling = form.pooling;
  }
  if (!request.is_normalised) request.is_normalised = form.is_normalised;
  if (request.dimensions > hidden_size())
    throw ApiError{400,
                   fmt::format("dimensions is {}; the model's embeddings have {}",
                               request.dimensions, hidden_size()),
                   "", "dimensions", 0};
  if (request.wanted_context > context())
    throw ApiError{400,
                   fmt::format("options.num_ctx is {}; this server's context is {} tokens, and was "
                               "set when it was started",
                               request.wanted_context, context()),
                   "unsupported", "options", 0};
}

std::vector<int32_t> Embedder::ids_of(const EmbeddingRequest& request, size_t index) const {
  const auto& input = request.inputs[index];
  const auto* text = std::get_if<std::string>(&input);
  const bool is_cut = request.keeps_beginning || request.kept_tokens != 0;
  std::vector<int32_t> ids =
      text ? texts.encode(*text,
                          request.adds_special.value_or(true) ? text::AddSpecial::kYes
                                                              : text::AddSpecial::kNo,
                          request.input_field, is_cut)
           : std::get<std::vector<int32_t>>(input);
  auto most = static_cast<size_t>(request.wanted_context > 0 ? request.wanted_context : context());
  if (request.keeps_beginning && ids.size() > most) {
    // What the tokenizer ends texts with stays: the last token's row is the embedding.
    const int32_t last = ids.back();
    ids.resize(most);
    if (tokenizer.is_special(last)) ids.back() = last;
  } else if (request.kept_tokens != 0) {
    if (request.kept_tokens > 0) most = static_cast<size_t>(request.kept_tokens);
    if (ids.size() > most) ids.erase(ids.begin(), ids.end() - static_cast<int64_t>(most));
  }
  const std::string where = request.inputs.size() == 1
                                ? std::string(request.input_field)
                                : fmt::format("{}[{}]", request.input_field, index);
  if (ids.empty())
    throw ApiError{400, where + " has no tokens; give at least one", "", request.input_field, 0};
  if (static_cast<int64_t>(ids.size()) > context())
    throw ApiError{400,
                   fmt::format("{} has {} tokens; this server's context is {}: shorten it, or let "
                               "truncate_prompt_tokens cut it",
                               where, ids.size(), context()),
                   "context_length_exceeded", request.input_field, 0};
  return ids;
}

void Embedder::answer(const http::Request& body, EmbeddingRoute route,
                      http::Response& response) const {
  texts.check_room();
  EmbeddingRequest request = parse_embedding(body.body, route, texts.vocab_size());
  const std::string& served = texts.options().model_name;
  if (is_ollama(route)) request.model = without_tag(request.model, served);
  const AdapterPtr adapter = texts.model_of(request.model);
  complete(request);
  AnswerShape shape;
  shape.id = random_name("embd-");
  shape.prompts = static_cast<int>(request.inputs.size());
  std::vector<Submission> submissions;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    Submission one;
    one.prompt = ids_of(request, i);
    one.pooling = request.pooling;
    shape.prompt_ids.push_back(one.prompt);
    submissions.push_back(std::move(one));
  }
  if (submissions.empty()) {  // the model is there
    ordered_json out{{"model", adapter ? adapter->name : served},
                     {"embeddings", ordered_json::array()}};
    if (route == EmbeddingRoute::kOllamaOne) out = {{"embedding", ordered_json::array()}};
    return response.set_content(dump(out), "application/json");
  }
  texts.answer(
      std::move(submissions), adapter, std::move(shape),
      [&](AnswerShape of) {
        return std::make_unique<EmbeddingAnswer>(std::move(of), std::move(request), route);
      },
      response);
}
}  // namespace

void add_embedding_routes(http::Router& router, const TextRoutes& texts,
                          const text::Tokenizer& tokenizer,
                          const std::function<http::Handler(http::Handler)>& guarded) {
  const auto embedder = std::make_shared<const Embedder>(texts, tokenizer);
  const std::pair<const char*, EmbeddingRoute> routes[] = {
      {"/v1/embeddings", EmbeddingRoute::kOpenAi},
      {"/api/embed", EmbeddingRoute::kOllama},
      {"/api/embeddings", EmbeddingRoute::kOllamaOne},
      {"/embedding", EmbeddingRoute::kLlama},
      {"/embeddings", EmbeddingRoute::kLlama}};
  for (const auto& [path, route] : routes)
    router.add(
        "POST", path, http::Place::kWork,
        guarded([embedder, route = route](const http::Request& request, http::Response& response) {
          embedder->answer(request, route, response);
        }));
}

}  // namespace sluice::serve
