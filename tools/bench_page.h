#pragma once
// The rows of `sluice bench` as a page with plots.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::tools {

/// `rows` as `bench --json` gives them in "results"; `model` and `machine` as the page names them.
std::string bench_html(const nlohmann::ordered_json& rows, const std::string& model,
                       const std::string& machine);

}  // namespace sluice::tools
