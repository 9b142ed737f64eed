#pragma once
// Shapes people ask for by name (opt-30b, llama-2-7b), which the families list: config.json texts
// for synth, plan and bench.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Names of the built-in shapes, smallest first within a family.
std::vector<std::string> builtin_model_names();

/// The config.json of that shape, or nothing when the name is unknown.
std::optional<std::string> builtin_config(std::string_view name);

}  // namespace sluice
