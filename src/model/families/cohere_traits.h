#pragma once
// What both families of Cohere have in common.
#include "src/model/families/decoder.h"

namespace sluice {

/// Attention and MLP of the same normed input, LayerNorm without bias, scaled logits.
inline DecoderTraits cohere_traits(const ModelConfig& config, std::string family) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = std::move(family),
                       .max_positions = 8192,
                       .eps = 1e-5,
                       .is_tied = true,
                       .norm = NormKind::kLayer,
                       .residual = Residual::kParallel,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .rope = RopeLayout::kPairs,
                       .logit_scale = read_factor(config, "logit_scale", 0.0625)};
  traits.keys.eps = "layer_norm_eps";
  return traits;
}

}  // namespace sluice
