#include "src/serve/responses_routes.h"

#include <memory>
#include <utility>

#include "src/serve/file_store.h"
#include "src/serve/responses_answer.h"
#include "src/serve/responses_request.h"

namespace sluice::serve {

void add_responses_routes(http::Router& router, const TextRoutes& texts,
                          const std::function<http::Handler(http::Handler)>& guarded) {
  router.add("POST", "/v1/responses", http::Place::kWork,
             guarded([&texts](const http::Request& request, http::Response& response) {
               texts.check_room();
               const ResponsesRequest call =
                   parse_responses(request.body, texts.options().defaults, texts.vocab_size());
               const FormMaker make = [&call](AnswerShape shape) {
                 shape.id = random_name("resp_");
                 return std::make_unique<ResponsesAnswer>(std::move(shape), call);
               };
               try {
                 texts.chat(call.chat, make, response);
               } catch (const ApiError& error) {
                 throw in_responses_words(error);
               }
             }));
}

}  // namespace sluice::serve
