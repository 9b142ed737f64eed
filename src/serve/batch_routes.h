#pragma once
// /v1/files and /v1/batches over HTTP. Thread safe as what they are given.
#include <functional>

#include "src/http/router.h"
#include "src/serve/batches.h"

namespace sluice::serve {

/// `batches` may be null: the routes say that no files are kept. `guarded` makes answers of what a
/// handler throws.
void add_batch_routes(http::Router& router, Batches* batches,
                      const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace sluice::serve
