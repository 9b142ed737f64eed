#pragma once
// Runs a route's function on a request whose body may be compressed; whatever goes wrong becomes an
// answer. Pure but for what the route does.
#include <functional>
#include <string>
#include <string_view>

#include "src/http/byte_budget.h"
#include "src/http/router.h"

namespace sluice::http {

struct RouteRunner {
  int64_t most_body_bytes;
  std::function<Response(int status, const std::string& message)> refusal;
  std::function<void(std::string_view)> log;  ///< may be empty

  /// `share` grows by what the body decodes to.
  Response run(const Handler& handler, Request request, ByteShare& share) const;
  /// "Try again later": a 503.
  Response busy(const std::string& why) const;
};

/// Why all of a ByteBudget is taken, for callers.
inline constexpr const char* kNoRoom =
    "the requests that are being read hold all the memory there is for them; try again later";

}  // namespace sluice::http
