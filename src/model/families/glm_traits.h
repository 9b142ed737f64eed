#pragma once
// What the two dense families of GLM-4 have in common.
#include "src/model/families/decoder.h"
#include "src/model/families/gguf_decoder.h"

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
                       .rope = config.boolean_or("rope_interleave", true) ? RopeLayout::kPairs
                                                                          : RopeLayout::kHalves};
  traits.names.join_gguf_rows();
  traits.ropes = {read_rope(config, read_head_dim(config, head_dim), {.share = sees ? 1 : 0.5})};
  return traits;
}

/// The config.json of a GGUF file of either. Models that see have halves in place of pairs, and say
/// how pairs are shared among the sides of a picture ("rope_interleave" is of our own making here).
inline std::string glm_of_gguf(const GgufKeys& keys, const char* architecture,
                               const char* model_type) {
  constexpr std::string_view kSections = "rope.dimension_sections";
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = architecture,
                                                     .model_type = model_type,
                                                     .turns_a_part = true,
                                                     .also = {kSections},
                                                     .has_yarn = true,
                                                     .has_drafts = true});
  config["attention_bias"] = keys.has_attention_bias();
  config["rope_interleave"] = !keys.has(keys.prefix() + std::string(kSections));
  // The families turn a half where nothing is said.
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  return config.dump(2);
}

}  // namespace sluice
