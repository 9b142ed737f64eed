#pragma once
// Shapes to plan for by name: the built-in models', from their published config.json files.
#include <optional>
#include <string_view>

#include "src/shape/model_shape.h"

namespace sluice {

/// The shape, or nothing when the name is unknown. The names: builtin_model_names().
std::optional<ModelShape> planning_shape(std::string_view name);

}  // namespace sluice
