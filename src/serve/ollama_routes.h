#pragma once
// Ollama's /api/chat, /api/generate, /api/tags, /api/show, /api/ps and /api/version over HTTP.
#include <functional>

#include "src/http/router.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// `texts` outlives the router. `guarded` makes answers of what a handler throws.
void add_ollama_routes(http::Router& router, const TextRoutes& texts,
                       const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
