// Jais 2: Llama with LayerNorm and biases, whose MLPs are not gated and square what a ReLU leaves.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_jais2(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", true);
  DecoderTraits traits{.family = "jais2",
                       .max_positions = 8192,
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = config.boolean_or("mlp_bias", true),
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "relu2")};
  traits.keys.eps = "layer_norm_eps";
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family jais2_family() { return {"jais2", make_jais2, nullptr, {}}; }

}  // namespace sluice
