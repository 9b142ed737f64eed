#pragma once
// What GPT-2 and GPT-BigCode have in common.
#include "src/model/families/decoder.h"

namespace sluice {

/// Learned positions, biases everywhere, a plain MLP, GPT-2's names of keys and tensors.
/// `activation` where config.json says nothing. Errors: kFile for a model that attends to an
/// encoder.
inline DecoderTraits gpt2_traits(const ModelConfig& config, std::string family,
                                 const char* activation) {
  if (config.boolean_or("add_cross_attention", false))
    config.refuse("it attends to an encoder", "sluice runs decoders");
  DecoderTraits traits{.family = std::move(family),
                       .max_positions = 1024,
                       .eps = 1e-5,
                       .is_tied = true,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .has_qkv_bias = true,
                       .has_o_bias = true,
                       .has_mlp_bias = true,
                       .fused = Fused::kWhole,
                       .is_gated = false,
                       .activation = read_activation(config, "activation_function", activation),
                       .has_positions = true};
  if (!config.boolean_or("scale_attn_weights", true)) traits.attention_scale = 1;
  traits.keys = {.hidden = "n_embd",
                 .intermediate = "n_inner",
                 .layers = "n_layer",
                 .heads = "n_head",
                 .kv_heads = nullptr,
                 .positions = "n_positions",
                 .eps = "layer_norm_epsilon"};
  traits.intermediate_size = 4 * config.integer("n_embd", 1, 1 << 20);
  name_as_gpt2(traits.names);
  return traits;
}

}  // namespace sluice
