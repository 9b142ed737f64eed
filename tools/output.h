#pragma once
// What commands write on standard output besides text: one JSON object.
#include <nlohmann/json_fwd.hpp>

namespace sluice::tools {

/// Prints `json` and a line end; strings that are not UTF-8 (paths may be anything) get U+FFFD.
void print_json(const nlohmann::ordered_json& json);
/// Errors: kFile when something that was printed did not arrive (disk full, closed pipe).
void check_output();

}  // namespace sluice::tools
