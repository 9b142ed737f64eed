#pragma once
// What the two dense families of GLM-4 have in common.
#include "src/model/families/decoder.h"

namespace sluice {

/// Heads of which half is turned in pairs, gate and up in one tensor.
inline DecoderTraits glm_traits(const ModelConfig& config, std::string family) {
  // Models that see have no width of their own for heads, and turn all of one where nothing is
  // said.
  const std::string type = config.text_or("model_type", "");
  const bool sees = type.ends_with("_text");
  // What theirs say of biases their classes do not read.
  const bool has_bias = sees ? type == "glm4v_text" : config.boolean_or("attention_bias", true);
  const int64_t head_dim = sees ? 0 : 128;
  DecoderTraits traits{.family = std::move(family),
                       .head_dim = head_dim,
                       .kv_heads = 2,
                       .max_positions = 131072,
                       .eps = 1.5625e-7,
                       .has_qkv_bias = has_bias,
                       .fused = Fused::kRows,
                       .rope = RopeLayout::kPairs};
  traits.ropes = {read_rope(config, read_head_dim(config, head_dim), {.share = sees ? 1 : 0.5})};
  return traits;
}

}  // namespace sluice
