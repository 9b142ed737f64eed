#include "src/serve/model_routes.h"

#include <utility>

#include "src/serve/adapter_routes.h"
#include "src/serve/anthropic_routes.h"
#include "src/serve/embedding_routes.h"
#include "src/serve/llama_routes.h"
#include "src/serve/ollama_routes.h"
#include "src/serve/rerank_routes.h"
#include "src/serve/responses_routes.h"

namespace sluice::serve {

namespace {
constexpr RoutePath kPaths[] = {{"POST", "/v1/completions"},
                                {"POST", "/v1/chat/completions"},
                                {"POST", "/chat/completions"},
                                {"POST", "/v1/responses"},
                                {"POST", "/v1/messages"},
                                {"POST", "/v1/messages/count_tokens"},
                                {"POST", "/api/chat"},
                                {"POST", "/api/generate"},
                                {"POST", "/api/embed"},
                                {"POST", "/api/embeddings"},
                                {"POST", "/completion"},
                                {"POST", "/completions"},
                                {"GET", "/props"},
                                {"POST", "/rerank"},
                                {"POST", "/v1/rerank"},
                                {"POST", "/v2/rerank"},
                                {"POST", "/v1/embeddings"},
                                {"POST", "/embedding"},
                                {"POST", "/embeddings"},
                                {"POST", "/tokenize"},
                                {"POST", "/detokenize"},
                                {"GET", "/tokenizer_info"}};
}  // namespace

std::span<const RoutePath> model_route_paths() { return kPaths; }

void ModelRoutes::add_to(http::Router& router, const Guard& guarded) const {
  using http::Place;
  const auto add = [&](const char* method, const char* path, http::Handler handler) {
    router.add(method, path, Place::kWork, guarded(std::move(handler)));
  };
  add_adapter_routes(
      router, service_.adapters(), options_.lora_folder,
      [this](const std::string& name) { return options_.names(name); }, guarded);
  add("POST", "/v1/completions",
      [this](const auto& request, auto& response) { texts_.complete(request, response); });
  // Also without "v1", as callers whose base address lacks it ask.
  for (const char* path : {"/v1/chat/completions", "/chat/completions"})
    add("POST", path,
        [this](const auto& request, auto& response) { texts_.chat_complete(request, response); });
  add_responses_routes(router, texts_, guarded);
  add_anthropic_routes(router, texts_, guarded);
  add_ollama_routes(router, texts_, guarded);
  add_llama_routes(router, texts_, tokenizer_, guarded);
  add_rerank_routes(router, texts_, tokenizer_, guarded);
  add_embedding_routes(router, texts_, tokenizer_, guarded);
  add("POST", "/tokenize",
      [this](const auto& request, auto& response) { texts_.tokenize(request, response); });
  add("POST", "/detokenize",
      [this](const auto& request, auto& response) { texts_.detokenize(request, response); });
  add("GET", "/tokenizer_info",
      [this](const auto&, auto& response) { texts_.tokenizer_info(response); });
}

}  // namespace sluice::serve
