#include "src/serve/anthropic_routes.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/anthropic_answer.h"
#include "src/serve/anthropic_request.h"
#include "src/serve/file_store.h"
#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
void answer_messages(const TextRoutes& texts, const http::Request& request,
                     http::Response& response) {
  texts.check_room();
  const ChatRequest call = parse_messages(request.body, texts.options().defaults,
                                          texts.vocab_size(), MessagesUse::kAnswer);
  const FormMaker make = [&call](AnswerShape shape) {
    shape.id = random_name("msg_");
    return std::make_unique<AnthropicAnswer>(std::move(shape), call.streams);
  };
  texts.chat(call, make, response);
}

void count_messages(const TextRoutes& texts, const http::Request& request,
                    http::Response& response) {
  const ChatRequest call = parse_messages(request.body, texts.options().defaults,
                                          texts.vocab_size(), MessagesUse::kCount);
  response.set_content(dump({{"input_tokens", texts.count_tokens(call)}}), "application/json");
}
}  // namespace

void add_anthropic_routes(http::Router& router, const TextRoutes& texts,
                          const std::function<http::Handler(http::Handler)>& guarded) {
  const auto add = [&](const char* path, auto answer) {
    router.add("POST", path, http::Place::kWork,
               guarded([&texts, answer](const http::Request& request, http::Response& response) {
                 try {
                   answer(texts, request, response);
                 } catch (const ApiError& error) {
                   throw in_anthropic_words(error);
                 }
               }));
  };
  add("/v1/messages", answer_messages);
  add("/v1/messages/count_tokens", count_messages);
}

}  // namespace sluice::serve
