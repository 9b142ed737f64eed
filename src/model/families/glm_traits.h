#pragma once
// What the two dense families of GLM-4 have in common.
#include "src/model/families/decoder.h"

namespace sluice {

/// Heads of which half is turned in pairs, gate and up in one tensor.
inline DecoderTraits glm_traits(const ModelConfig& config, std::string family) {
  // Models that see have no width of their own for heads.
  const bool sees = config.text_or("model_type", "").ends_with("_text");
  const int64_t head_dim = sees ? 0 : 128;
  DecoderTraits traits{.family = std::move(family),
                       .head_dim = head_dim,
                       .kv_heads = 2,
                       .max_positions = 131072,
                       .eps = 1.5625e-7,
                       .has_qkv_bias = config.boolean_or("attention_bias", true),
                       .fused = Fused::kRows,
                       .rope = RopeLayout::kPairs};
  traits.ropes = {read_rope(config, read_head_dim(config, head_dim), {.share = 0.5})};
  return traits;
}

}  // namespace sluice
