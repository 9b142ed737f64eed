#pragma once
// What the two dense families of GLM-4 have in common.
#include "src/model/families/decoder.h"

namespace sluice {

/// Heads of which half is turned in pairs, gate and up in one tensor.
inline DecoderTraits glm_traits(const ModelConfig& config, std::string family) {
  constexpr int64_t kHeadDim = 128;
  DecoderTraits traits{.family = std::move(family),
                       .head_dim = kHeadDim,
                       .kv_heads = 2,
                       .max_positions = 131072,
                       .eps = 1.5625e-7,
                       .has_qkv_bias = config.boolean_or("attention_bias", true),
                       .fused = Fused::kRows,
                       .rope = RopeLayout::kPairs};
  traits.ropes = {read_rope(config, read_head_dim(config, kHeadDim), {.share = 0.5})};
  return traits;
}

}  // namespace sluice
