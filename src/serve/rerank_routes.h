#pragma once
// /rerank, /v1/rerank and /v2/rerank over HTTP: documents in the order of how likely the model is
// to say that they answer a query.
#include <functional>

#include "src/http/router.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// `texts`, `tokenizer`: outlive the router. `guarded`: answers what a handler throws.
void add_rerank_routes(http::Router& router, const TextRoutes& texts,
                       const text::Tokenizer& tokenizer,
                       const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
