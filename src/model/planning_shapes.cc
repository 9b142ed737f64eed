#include "src/model/planning_shapes.h"

#include "src/model/builtin.h"
#include "src/model/family.h"

namespace sluice {

std::optional<ModelShape> planning_shape(std::string_view name) {
  const auto config = builtin_config(name);
  if (!config) return std::nullopt;
  return make_family_model(ModelConfig(*config, std::string(name)))->shape();
}

}  // namespace sluice
