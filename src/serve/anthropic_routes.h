#pragma once
// /v1/messages and /v1/messages/count_tokens over HTTP.
#include <functional>

#include "src/http/router.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// `texts` outlives the router. `guarded` makes answers of what a handler throws.
void add_anthropic_routes(http::Router& router, const TextRoutes& texts,
                          const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
