#pragma once
// llama.cpp's own interface over HTTP: /completion (also as /completions) and /props. Its
// /tokenize and /detokenize are those of src/serve/text_routes.h.
#include <functional>

#include "src/http/router.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

/// `texts`, `tokenizer`: outlive the router. `guarded`: answers what a handler throws.
void add_llama_routes(http::Router& router, const TextRoutes& texts,
                      const text::Tokenizer& tokenizer,
                      const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
