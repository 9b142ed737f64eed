#pragma once
// /v1/files and /v1/batches over HTTP. Thread safe as what they are given.
#include <functional>

#include "src/serve/batches.h"

namespace httplib {
class Server;
struct Request;
struct Response;
}  // namespace httplib

namespace sluice::serve {

using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

/// `batches` may be null: the routes say that no files are kept. `guarded` makes answers of what a
/// handler throws.
void add_batch_routes(httplib::Server& server, Batches* batches,
                      const std::function<Handler(Handler)>& guarded);

}  // namespace sluice::serve
