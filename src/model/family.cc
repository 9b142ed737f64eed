#include "src/model/family.h"

#include <fmt/format.h>

#include "src/base/error.h"
#include "src/model/families/families.h"

namespace sluice {

const std::vector<Family>& families() {
  static const std::vector<Family> list{
      {"llama", make_llama},
      {"opt", make_opt},
  };
  return list;
}

std::vector<ScalingPlace> FamilyModel::scaling_places(const SublayerShape&) const { return {}; }

std::unique_ptr<FamilyModel> make_family_model(const ModelConfig& config) {
  const std::string type = config.text_or("model_type", "");
  if (type.empty())
    config.refuse("\"model_type\" is missing", "sluice needs it to know the architecture");
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == type) return family.make(config);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model_type);
  }
  config.refuse(fmt::format("model_type \"{}\" is not supported", type),
                fmt::format("sluice runs: {}", known));
}

DType config_dtype(const ModelConfig& config) {
  const std::string name = config.text_or("torch_dtype", config.text_or("dtype", "bfloat16"));
  const auto type = parse_dtype(name);
  if (!type || !is_weight_dtype(*type))
    config.refuse(fmt::format("\"torch_dtype\" is \"{}\"", name),
                  "sluice reads float32, float16 and bfloat16 weights");
  return *type;
}

}  // namespace sluice
