// ERNIE 4.5 with experts: its dense models' attention, and from a layer on mixtures whose routers'
// softmax is corrected where experts are chosen.
#include <fmt/format.h>

#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_ernie4_5_moe(const ModelConfig& config) {
  constexpr int64_t kMost = 4096;
  const bool has_bias = config.boolean_or("use_bias", false);
  DecoderTraits traits{.family = "ernie4_5_moe",
                       .kv_heads = 4,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .is_tied = true,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = has_bias,
                       .rope = RopeLayout::kPairs};
  if (has_bias)
    config.refuse("\"use_bias\" is true", "sluice runs mixtures of this family without biases");
  traits.ropes = {read_rope(config, read_head_dim(config), {.theta = 5e5})};
  const int64_t layers = config.integer("num_hidden_layers", 1, kMost);
  const int64_t first = config.integer_or("moe_layer_start_index", 1, 0, kMost);
  const int64_t last = config.integer_or("moe_layer_end_index", -1, -1, kMost);
  const int64_t interval = config.integer_or("moe_layer_interval", 1, 1, kMost);
  for (int64_t layer = 0; layer < layers; ++layer)
    traits.mixture_layers.push_back((layer + 1) % interval == 0 && layer >= first &&
                                    (last == -1 || layer <= last));
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(
        config, {.experts = "moe_num_experts", .chosen = "moe_k", .width = "moe_intermediate_size"},
        64, 6, 1536);
    mixture.router.renormalises = true;
    mixture.router.eps = 1e-12f;
    mixture.is_corrected = true;
    mixture.shared_width =
        mixture.width * config.integer_or("moe_num_shared_experts", 2, 0, RouterSpec::kMostExperts);
    traits.names.correction = {"mlp.moe_statics.e_score_correction_bias", nullptr};
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family ernie4_5_moe_family() { return {"ernie4_5_moe", make_ernie4_5_moe, nullptr, {}}; }

}  // namespace sluice
