#pragma once
// /v1/embeddings, Ollama's /api/embed and /api/embeddings, llama.cpp's /embedding over HTTP: rows
// behind the model's final norm, pooled.
#include <functional>

#include "src/http/router.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// `texts`, `tokenizer`: outlive the router. `guarded`: answers what a handler throws.
void add_embedding_routes(http::Router& router, const TextRoutes& texts,
                          const text::Tokenizer& tokenizer,
                          const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
