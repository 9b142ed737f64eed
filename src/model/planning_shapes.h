#pragma once
// Shapes to plan for by name: the built-in ones that also run, and families that no code here runs
// yet, from the models' published config.json files.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/shape/model_shape.h"

namespace sluice {

/// All names, runnable ones first.
std::vector<std::string> planning_model_names();
/// Whether a family here runs it.
bool is_runnable_model(std::string_view name);
/// The shape, or nothing when the name is unknown.
std::optional<ModelShape> planning_shape(std::string_view name);

}  // namespace sluice
