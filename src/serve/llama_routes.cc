#include "src/serve/llama_routes.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "src/serve/json_text.h"
#include "src/serve/llama_answer.h"
#include "src/serve/llama_request.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

void complete_llama(const TextRoutes& texts, const text::Tokenizer& tokenizer,
                    const http::Request& request, http::Response& response) {
  texts.check_room();
  LlamaRequest asked =
      parse_llama_completion(request.body, texts.options().defaults, texts.vocab_size());
  if (!asked.parts.empty()) {
    // The tokens that begin a text begin the first part of text, where it comes first.
    std::vector<int32_t> ids;
    for (size_t i = 0; i < asked.parts.size(); ++i) {
      if (const auto* id = std::get_if<int32_t>(&asked.parts[i])) {
        ids.push_back(*id);
        continue;
      }
      const auto some =
          texts.encode(std::get<std::string>(asked.parts[i]),
                       i == 0 ? text::AddSpecial::kYes : text::AddSpecial::kNo, "prompt");
      ids.insert(ids.end(), some.begin(), some.end());
    }
    asked.call.prompts = {std::move(ids)};
  }
  const FormMaker make = [&](AnswerShape shape) {
    return std::make_unique<LlamaAnswer>(std::move(shape), asked, tokenizer);
  };
  texts.complete(asked.call, make, response);
}

void tell_props(const TextRoutes& texts, http::Response& response) {
  const auto* templ = texts.chat_template();
  const ordered_json settings = llama_settings(texts.options().defaults);
  response.set_content(
      dump({{"default_generation_settings",
             {{"n_ctx", texts.service().engine().context_tokens()}, {"params", settings}}},
            {"total_slots", texts.service().most_running()},
            {"model_alias", texts.options().model_name},
            {"model_path", texts.options().model_name},  // no paths of this machine
            {"chat_template", templ ? templ->source().text : std::string()},
            {"batch_invariant", texts.service().engine().options().batch_invariant},
            {"modalities", {{"vision", false}, {"audio", false}}},
            {"build_info", std::string("sluice ") + SLUICE_VERSION}}),
      "application/json");
}
}  // namespace

void add_llama_routes(http::Router& router, const TextRoutes& texts,
                      const text::Tokenizer& tokenizer,
                      const std::function<http::Handler(http::Handler)>& guarded) {
  for (const char* path : {"/completion", "/completions"})
    router.add("POST", path, http::Place::kWork,
               guarded([&](const http::Request& request, http::Response& response) {
                 try {
                   complete_llama(texts, tokenizer, request, response);
                 } catch (const ApiError& error) {
                   throw in_llama_words(error);
                 }
               }));
  router.add("GET", "/props", http::Place::kWork,
             guarded([&](const http::Request&, http::Response& response) {
               tell_props(texts, response);
             }));
}

}  // namespace sluice::serve
