#include "src/http/route_runner.h"

#include <fmt/format.h>

#include "src/http/content_encoding.h"

namespace sluice::http {

Response RouteRunner::busy(const std::string& why) const {
  Response response = refusal(503, why);
  response.set_header("Retry-After", "1");
  return response;
}

Response RouteRunner::run(const Handler& handler, Request request, ByteShare& share) const {
  try {
    switch (decode_body(request.header("Content-Encoding"), most_body_bytes, share, request.body)) {
      case DecodeOutcome::kDone: break;
      case DecodeOutcome::kTooLarge:
        return refusal(413, fmt::format("the body decodes to more than the {} bytes that this "
                                        "server takes",
                                        most_body_bytes));
      case DecodeOutcome::kNoRoom: return busy(kNoRoom);
      case DecodeOutcome::kBroken:
        return refusal(400, "the body is not what its Content-Encoding says");
    }
    Response response;
    handler(request, response);
    return response;
  } catch (const std::exception& error) {
    if (log)
      log(fmt::format("{} {}: {}", request.method, request.path.substr(0, 200), error.what()));
    return refusal(500, "an error of the server's own; its log says more");
  }
}

}  // namespace sluice::http
