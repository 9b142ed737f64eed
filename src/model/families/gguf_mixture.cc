#include "src/model/families/gguf_mixture.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace sluice {

namespace {
constexpr const char* kDamaged = "download the file again";
constexpr const char* kNotRead = "such models are not read";

std::string layer_tensor(int64_t layer, const char* name) {
  return fmt::format("blk.{}.{}.weight", layer, name);
}

// Gates and ups of all experts may be one stack.
bool is_mixture_layer(const GgufKeys& keys, int64_t layer) {
  return keys.tensor(layer_tensor(layer, "ffn_gate_exps")) ||
         keys.tensor(layer_tensor(layer, "ffn_gate_up_exps"));
}

// The first layer that is one; nothing where there is none.
std::optional<int64_t> first_mixture(const GgufKeys& keys, int64_t layers) {
  for (int64_t layer = 0; layer < layers; ++layer)
    if (is_mixture_layer(keys, layer)) return layer;
  return std::nullopt;
}

std::vector<int64_t> dense_layers(const GgufKeys& keys, int64_t layers) {
  std::vector<int64_t> out;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (!is_mixture_layer(keys, layer) && keys.tensor(layer_tensor(layer, "ffn_gate")))
      out.push_back(layer);
  return out;
}

// As the file says, or as wide as the matrices of the first layer that has any.
int64_t width_of(const GgufKeys& keys, const char* key, const char* tensor, int64_t layers) {
  if (const auto said = keys.integer(keys.prefix() + key)) return *said;
  const io::TensorEntry* matrix = nullptr;
  if (const auto layer = first_mixture(keys, layers))
    matrix = keys.tensor(layer_tensor(*layer, tensor));
  if (!matrix || matrix->shape.size() < 2)
    keys.refuse(fmt::format("neither key {}{} nor a tensor {} says how wide experts are",
                            keys.prefix(), key, layer_tensor(0, tensor)),
                kDamaged);
  return matrix->shape[matrix->shape.size() - 2];
}

void read_counts(const GgufKeys& keys, const GgufMixtureKind& mixture, nlohmann::json& config) {
  const std::string p = keys.prefix();
  const int64_t experts = keys.need_integer(p + "expert_count");
  const int64_t chosen = keys.need_integer(p + "expert_used_count");
  if (experts < 1)
    keys.refuse(
        fmt::format("key {}expert_count is {}, but the architecture has experts", p, experts),
        kDamaged);
  if (chosen < 1 || chosen > experts)
    keys.refuse(fmt::format("key {}expert_used_count is {}, of {} experts", p, chosen, experts),
                kDamaged);
  config[mixture.experts] = experts;
  config["num_experts_per_tok"] = chosen;
  const int64_t groups = keys.integer(p + "expert_group_count").value_or(1);
  const int64_t kept = keys.integer(p + "expert_group_used_count").value_or(groups);
  if (mixture.has_groups) {
    config["n_group"] = groups;
    config["topk_group"] = kept;
  } else if (groups > 1) {
    keys.refuse(fmt::format("key {}expert_group_count is {}", p, groups), kNotRead);
  }
}

void read_router(const GgufKeys& keys, const GgufMixtureKind& mixture, nlohmann::json& config) {
  const std::string p = keys.prefix();
  const auto gating = keys.integer(p + "expert_gating_func");
  const auto known = static_cast<int64_t>(mixture.gating);
  if (gating.value_or(0) != 0 && *gating != known)
    keys.refuse(fmt::format("key {}expert_gating_func is {}; {} is read for this architecture", p,
                            *gating, known),
                kNotRead);
  const auto says = keys.boolean(p + "expert_weights_norm");
  if (!mixture.always_does_so)
    config["norm_topk_prob"] = says.value_or(mixture.renormalises);
  else if (says.value_or(mixture.renormalises) != mixture.renormalises)
    keys.refuse(fmt::format("key {}expert_weights_norm is {}", p, *says), kNotRead);
  double scale = keys.number(p + "expert_weights_scale").value_or(1);
  if (scale == 0) scale = 1;  // as the readers of the format have it
  if (mixture.scale)
    config[mixture.scale] = scale;
  else if (scale != 1)
    keys.refuse(fmt::format("key {}expert_weights_scale is {}", p, scale), kNotRead);
}

void read_shared(const GgufKeys& keys, const GgufMixtureKind& mixture, int64_t layers,
                 nlohmann::json& config) {
  const int64_t count = keys.integer(keys.prefix() + "expert_shared_count").value_or(0);
  if (mixture.has_shared) config["n_shared_experts"] = count;
  if (mixture.shared_width)
    config[mixture.shared_width] =
        width_of(keys, "expert_shared_feed_forward_length", "ffn_gate_shexp", layers);
  if (mixture.has_shared || mixture.has_one_shared || mixture.shared_width) return;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (const std::string name = layer_tensor(layer, "ffn_up_shexp"); keys.tensor(name))
      keys.refuse(fmt::format("{} is of an expert that every token goes to", name), kNotRead);
  if (count > 0)
    keys.refuse(fmt::format("key {}expert_shared_count is {}", keys.prefix(), count), kNotRead);
}
}  // namespace

nlohmann::json gguf_mixture_config(const GgufKeys& keys, GgufDecoderKind kind,
                                   const GgufMixtureKind& mixture) {
  kind.has_experts = true;
  nlohmann::json config = gguf_decoder_config(keys, kind);
  const int64_t layers = config["num_hidden_layers"].get<int64_t>();
  read_counts(keys, mixture, config);
  read_router(keys, mixture, config);
  const auto first = first_mixture(keys, layers);
  const bool is_one_stack = first && !keys.tensor(layer_tensor(*first, "ffn_gate_exps"));
  config[mixture.width] =
      is_one_stack ? keys.need_integer(keys.prefix() + "expert_feed_forward_length")
                   : width_of(keys, "expert_feed_forward_length", "ffn_gate_exps", layers);
  read_shared(keys, mixture, layers, config);
  if (mixture.beginning)
    config[mixture.beginning] =
        keys.integer(keys.prefix() + "leading_dense_block_count").value_or(0);
  else
    config["mlp_only_layers"] = dense_layers(keys, layers);
  return config;
}

}  // namespace sluice
