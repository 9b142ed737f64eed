#pragma once
// What a load on a server felt like, as pictures: of rows as summarise() (src/serve/load.h) gives
// them, each with "load" (users, or requests a second) and "load_name" besides.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::serve {

/// Latency against load as an SVG file. `load_name`: "users" or "requests per second".
std::string latency_svg(const nlohmann::ordered_json& rows, const std::string& load_name);

/// A page of latency, times of tokens and throughput against load, and the table. `url`: whose.
std::string load_html(const nlohmann::ordered_json& rows, const std::string& load_name,
                      const std::string& url);

}  // namespace sluice::serve
