#include "src/serve/rerank_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "src/serve/file_store.h"
#include "src/serve/json_text.h"
#include "src/serve/rerank_request.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// Each document's prompt is answered twice, with yes and with no: what counts is how likely each
// was. The second finds the prompt in the prefix cache.
constexpr size_t kWords = 2;
constexpr float kForced = 100;  // the bias of the word

class RerankAnswer final : public AnswerForm {
 public:
  /// `words`: the tokens of yes and no.
  RerankAnswer(AnswerShape shape, RerankRequest request, std::array<int32_t, kWords> words)
      : shape_(std::move(shape)),
        request_(std::move(request)),
        words_(words),
        logprobs_(request_.documents.size() * kWords, -INFINITY) {}

  void add(const Event& event) override {
    const auto index = static_cast<size_t>(event.index);
    for (const sampling::Choice& choice : event.choices)
      if (choice.token == words_[index % kWords]) logprobs_[index] = choice.logprob;
    if (event.is_last()) ++ended_;
  }
  std::string stream_of(const Event&) override { return {}; }
  std::string stream_end() override { return {}; }
  std::string stream_error(const ApiError& error) override { return error.body(); }
  bool is_complete() const noexcept override { return ended_ == logprobs_.size(); }
  std::string whole() override {
    std::vector<size_t> order(request_.documents.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return score(a) > score(b); });
    if (request_.top_n > 0) order.resize(std::min(order.size(), request_.top_n));
    auto results = ordered_json::array();
    for (const size_t document : order) {
      ordered_json one{{"index", document}, {"relevance_score", score(document)}};
      if (request_.returns_documents) one["document"] = {{"text", request_.documents[document]}};
      results.push_back(std::move(one));
    }
    size_t tokens = 0;
    for (size_t i = 0; i < shape_.prompt_ids.size(); i += kWords)
      tokens += shape_.prompt_ids[i].size();
    return dump({{"id", shape_.id},
                 {"object", "list"},
                 {"model", shape_.model},
                 {"results", std::move(results)},
                 {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
  }

 private:
  // P(yes) / (P(yes) + P(no)).
  double score(size_t document) const {
    const double yes = logprobs_[document * kWords], no = logprobs_[document * kWords + 1];
    if (yes == -INFINITY) return no == -INFINITY ? 0.5 : 0;
    return 1 / (1 + std::exp(no - yes));
  }

  const AnswerShape shape_;
  const RerankRequest request_;
  const std::array<int32_t, kWords> words_;
  std::vector<float> logprobs_;  // [documents, words]
  size_t ended_ = 0;
};

std::array<int32_t, kWords> words_of(const text::Tokenizer& tokenizer) {
  const auto first = [&](const char* word) {
    const auto ids = tokenizer.encode(word, text::AddSpecial::kNo);
    return ids.empty() ? int32_t{-1} : ids.front();
  };
  const std::array<int32_t, kWords> out{first("yes"), first("no")};
  if (out[0] < 0 || out[1] < 0 || out[0] == out[1])
    throw ApiError{400, "the model's tokens don't tell \"yes\" from \"no\"; it can't rerank",
                   "unsupported", "model", 0};
  return out;
}

std::vector<int32_t> prompt_of(const TextRoutes& texts, const RerankRequest& request,
                               size_t document, SystemMessage& where) {
  if (where == SystemMessage::kApart) try {
      return texts.ids_of(rerank_chat(request, document, where));
    } catch (const ApiError& error) {
      if (error.code == "context_length_exceeded" || error.status != 400) throw;
      where = SystemMessage::kInQuestion;  // a template without system messages
    }
  return texts.ids_of(rerank_chat(request, document, where));
}

void rerank(const TextRoutes& texts, const text::Tokenizer& tokenizer, const http::Request& body,
            http::Response& response) {
  texts.check_room();
  const RerankRequest request = parse_rerank(body.body);
  const AdapterPtr adapter = texts.model_of(request.model);
  const auto words = words_of(tokenizer);
  const int64_t context = texts.service().engine().context_tokens();
  AnswerShape shape;
  shape.id = random_name("rerank-");
  std::vector<Submission> submissions;
  SystemMessage where = SystemMessage::kApart;
  for (size_t document = 0; document < request.documents.size(); ++document) {
    const std::vector<int32_t> ids = prompt_of(texts, request, document, where);
    if (static_cast<int64_t>(ids.size()) >= context)
      throw ApiError{400,
                     fmt::format("documents[{}] makes a prompt of {} tokens; this server's context "
                                 "is {}: shorten it",
                                 document, ids.size(), context),
                     "context_length_exceeded", "documents", 0};
    for (const int32_t word : words) {
      Submission one;
      one.prompt = ids;
      one.params.temperature = 0;
      one.params.max_tokens = 1;
      one.params.logprobs = 0;
      one.params.logit_bias = {{word, kForced}};
      submissions.push_back(std::move(one));
      shape.prompt_ids.push_back(ids);
    }
  }
  shape.prompts = static_cast<int>(submissions.size());
  texts.answer(
      std::move(submissions), adapter, std::move(shape),
      [&](AnswerShape of) { return std::make_unique<RerankAnswer>(std::move(of), request, words); },
      response);
}
}  // namespace

void add_rerank_routes(http::Router& router, const TextRoutes& texts,
                       const text::Tokenizer& tokenizer,
                       const std::function<http::Handler(http::Handler)>& guarded) {
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"})
    router.add("POST", path, http::Place::kWork,
               guarded([&](const http::Request& request, http::Response& response) {
                 rerank(texts, tokenizer, request, response);
               }));
}

}  // namespace sluice::serve
