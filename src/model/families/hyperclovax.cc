// HyperCLOVA X: Granite with norms behind both parts of a layer too, whose logits are multiplied.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_hyperclovax(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  const bool has_scale = config.has("attention_multiplier");
  DecoderTraits traits{
      .family = "hyperclovax",
      .has_qkv_bias = has_bias,
      .has_o_bias = has_bias,
      .has_mlp_bias = config.boolean_or("mlp_bias", false),
      .attention_scale = has_scale ? read_factor(config, "attention_multiplier", 1) : 0,
      .embed_scale = read_factor(config, "embedding_multiplier", 1),
      .residual_scale = read_factor(config, "residual_multiplier", 1),
      .logit_scale = read_factor(config, "logits_scaling", 1)};
  if (config.boolean_or("use_post_norm", true)) traits.place = NormPlace::kAround;
  traits.names.attention_post_norm = {"post_norm1", nullptr};
  traits.names.mlp_post_norm = {"post_norm2", nullptr};
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family hyperclovax_family() { return {"hyperclovax", make_hyperclovax, nullptr, {}}; }

}  // namespace sluice
