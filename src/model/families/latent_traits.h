#pragma once
// What families with latent attention (arXiv:2405.04434) read from config.json alike.
#include <cmath>

#include "src/model/families/decoder.h"

namespace sluice {

/// 1 / sqrt(the width of a key), times the square of 0.1 "mscale_all_dim" ln("factor") + 1 where
/// the rotary positions are scaled and have that (YaRN, arXiv:2309.00071, as DeepSeek uses it).
inline float latent_scale(const ModelConfig& config, int64_t width) {
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const auto rope =
      config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!rope) return static_cast<float>(scale);
  const bool is_scaled = rope->text_or("rope_type", rope->text_or("type", "default")) != "default";
  const double factor = rope->number_or("factor", 1), m = rope->number_or("mscale_all_dim", 0);
  const double root = is_scaled && m != 0 && factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1;
  return static_cast<float>(scale * root * root);
}

/// Sizes that are the family's where config.json has none.
struct LatentDefaults {
  int64_t query_rank = 1536;
  int64_t rank = 512;
  int64_t key_width = 128;
  int64_t turned_width = 64;
  int64_t value_width = 128;
};

/// Reads sizes, scale and rotary positions into `traits`. Errors: kFile.
inline void read_latent_attention(const ModelConfig& config, const LatentDefaults& defaults,
                                  DecoderTraits& traits) {
  constexpr int64_t kWide = 1 << 16;
  if (config.boolean_or("attention_bias", false))
    config.refuse("\"attention_bias\" is true", "sluice runs latent attention without biases");
  LatentAttention latent;
  if (!config.is_null("q_lora_rank"))
    latent.query_rank = config.integer_or("q_lora_rank", defaults.query_rank, 1, kWide);
  latent.rank = config.integer_or("kv_lora_rank", defaults.rank, 1, kWide);
  latent.key_width = config.integer_or("qk_nope_head_dim", defaults.key_width, 1, 1024);
  latent.turned_width = config.integer_or("qk_rope_head_dim", defaults.turned_width, 2, 1024);
  latent.value_width = config.integer_or("v_head_dim", defaults.value_width, 1, 1024);
  traits.attention_scale = latent_scale(config, latent.key_width + latent.turned_width);
  traits.ropes = {read_rope(config, latent.turned_width)};
  traits.latent = latent;
  traits.keys.kv_heads = nullptr;  // every head has keys and values of its own
}

}  // namespace sluice
