#pragma once
// Which function answers which request. Built once, then read by any thread.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/http/message.h"

namespace sluice::http {

/// What it throws becomes a 500: routes turn what they expect into answers.
using Handler = std::function<void(const Request&, Response&)>;

/// Where a route's function runs.
enum class Place : uint8_t {
  kLoop,      ///< in the server's own thread: microseconds, never waits
  kReserved,  ///< in a thread that no work ever fills: short, may wait for the disk
  kWork       ///< with all else
};

class Router {
 public:
  /// `path`: of segments; "{}" matches one of letters, digits, '_' and '-', up to 100 of them;
  /// "{*}" at the end what is left, if anything.
  void add(std::string method, std::string_view path, Place place, Handler handler);

  struct Match {
    const Handler* handler;
    Place place;
    std::vector<std::string> parts;
  };
  std::optional<Match> find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::string method;
    std::vector<std::string> segments;
    Place place;
    Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace sluice::http
