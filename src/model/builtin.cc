#include "src/model/builtin.h"

#include "src/model/family.h"

namespace sluice {

std::vector<std::string> builtin_model_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (!family.presets) continue;
    for (const KnownModel& preset : family.presets()) names.push_back(preset.name);
  }
  return names;
}

std::optional<std::string> builtin_config(std::string_view name) {
  for (const Family& family : families()) {
    if (!family.presets) continue;
    for (KnownModel& preset : family.presets())
      if (name == preset.name) return std::move(preset.config);
  }
  return std::nullopt;
}

}  // namespace sluice
