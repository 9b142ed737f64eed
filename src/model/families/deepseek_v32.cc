// DeepSeek-V3.2 and GLM-5: DeepSeek-V3's layers, whose attention chooses keys by an index where
// there are more than so many. Up to there it is DeepSeek-V3's; further the model does not run.
#include "src/model/families/latent_traits.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_deepseek_v32(const ModelConfig& config) {
  const bool is_glm = config.text_or("model_type", "") == "glm_moe_dsa";
  DecoderTraits traits{.family = is_glm ? "glm_moe_dsa" : "deepseek_v32",
                       .max_positions = is_glm ? 202752 : 163840,
                       .eps = is_glm ? 1e-5 : 1e-6,
                       .rope = RopeLayout::kPairs,
                       .sparse_from = config.integer_or("index_topk", 2048, 1, int64_t{1} << 31)};
  const LatentDefaults glm{.query_rank = 2048, .rank = 512, .key_width = 192, .value_width = 256};
  read_latent_attention(config, is_glm ? glm : LatentDefaults{}, traits);
  traits.mixture_layers =
      read_mlp_types(config, config.integer_or("first_k_dense_replace", 3, 0, 1 << 20));
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 256, 8, 2048);
    read_corrected_router(config, 2.5, mixture);
    read_groups(config, is_glm ? 1 : 8, is_glm ? 1 : 4, mixture.router);
    read_shared_experts(config, 1, mixture);
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family deepseek_v32_family() {
  return {"deepseek_v32", make_deepseek_v32, nullptr, {}, {"glm_moe_dsa"}};
}

}  // namespace sluice
