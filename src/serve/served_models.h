#pragma once
// What a server serves, one model or several, as its routes see it. Thread safe.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/http/router.h"

namespace sluice::serve {

/// Makes answers of what a handler throws.
using Guard = std::function<http::Handler(http::Handler)>;

class ServedModels {
 public:
  virtual ~ServedModels() = default;
  /// Adds the routes that models answer. Once, before any of them is asked.
  virtual void add_routes(http::Router& router, const Guard& guarded) = 0;
  /// OpenAI's object of every name that requests may use; `created`: seconds since 1970.
  virtual nlohmann::ordered_json list(int64_t created) const = 0;
  /// That of one name. Throws ApiError (404).
  virtual nlohmann::ordered_json find(const std::string& name, int64_t created) const = 0;
  /// Adds to the object of /health how many requests run and wait, and what there is to know of the
  /// models. Throws ApiError where no request can be answered any more.
  virtual void tell_health(nlohmann::ordered_json& health) const = 0;
  /// In the text format of Prometheus.
  virtual std::string metrics() const = 0;
  /// So many requests may run and wait together.
  virtual int64_t most_requests() const = 0;
};

}  // namespace sluice::serve
