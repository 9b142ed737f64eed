#pragma once
// JSON as the server writes it: on one line, text that is not UTF-8 mended.
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::serve {

/// On one line; bytes that are no UTF-8 are replaced.
inline std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace sluice::serve
