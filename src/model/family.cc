#include "src/model/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/layer/operator_cost.h"
#include "src/model/text_part.h"

namespace sluice {

#define SLUICE_FAMILY(name) Family name##_family();
#include "src/model/families/list.inc"
#undef SLUICE_FAMILY

const std::vector<Family>& families() {
#define SLUICE_FAMILY(name) name##_family(),
  static const std::vector<Family> list{
#include "src/model/families/list.inc"
  };
#undef SLUICE_FAMILY
  return list;
}

void FamilyModel::write(SublayerKind kind, LayerBuilder& layer) const {
  switch (kind) {
    case SublayerKind::kEmbed: return embed(layer);
    case SublayerKind::kAttention: return attention(layer);
    case SublayerKind::kMlp: return mlp(layer);
    case SublayerKind::kHead: return head(layer);
  }
}

void FamilyModel::write_programs() {
  if (shape_.state_groups.empty())
    shape_.set_states({.heads = shape_.num_kv_heads, .width = shape_.head_dim});
  for (SublayerShape& sublayer : shape_.sublayers) {
    LayerBuilder layer(sublayer, shape_.hidden_size);
    write(sublayer.kind, layer);
    LayerProgram program = layer.take();
    sublayer.work = row_work(program, sublayer, shape_);
    mark_weights_after_cut(program, sublayer);
    if (program.cut >= 0)
      shape_.kept_columns = std::max(
          shape_.kept_columns, program.operators[static_cast<size_t>(program.cut)].in[3].cols);
    shape_.workspace_columns = std::max(shape_.workspace_columns, program.columns());
    const auto found = std::find(programs_.begin(), programs_.end(), program);
    program_of_.push_back(static_cast<size_t>(found - programs_.begin()));
    if (found == programs_.end()) programs_.push_back(std::move(program));
  }
}

std::unique_ptr<FamilyModel> make_family_model(const ModelConfig& whole) {
  const TextPart part = text_part(whole);
  const ModelConfig& config = part.config;
  const std::string type = config.text_or("model_type", "");
  if (type.empty())
    config.refuse("\"model_type\" is missing", "sluice needs it to know the architecture");
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == type ||
        std::find(family.also.begin(), family.also.end(), type) != family.also.end()) {
      auto model = family.make(config);
      model->write_programs();
      return model;
    }
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
