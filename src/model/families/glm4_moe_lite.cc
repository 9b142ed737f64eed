// GLM-4.7-Flash: DeepSeek-V3's latent attention and routers, a first layer without experts.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/latent_traits.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_glm4_moe_lite(const ModelConfig& config) {
  const bool has_pairs = config.boolean_or("rope_interleave", true);
  DecoderTraits traits{.family = "glm4_moe_lite",
                       .heads = 20,
                       .vocab_size = 154880,
                       .max_positions = 202752,
                       .eps = 1e-5,
                       .rope = has_pairs ? RopeLayout::kPairs : RopeLayout::kHalves};
  read_latent_attention(
      config, {.query_rank = 768, .rank = 512, .key_width = 192, .value_width = 256}, traits);
  // What "first_k_dense_replace" says is not read (transformers 5.24).
  traits.mixture_layers = read_mlp_types(config, 1);
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 64, 4, 1536);
    read_corrected_router(config, 1.8, mixture);
    read_groups(config, 1, 1, mixture.router);
    read_shared_experts(config, 1, mixture);
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kGlm4MoeLite{"Glm4MoeLiteForCausalLM", "glm4_moe_lite", 0, 154820};
constexpr DecoderSizes kGlm4MoeLites[] = {
    {"glm-4.7-flash", 47, 2048, 10240, 20, 20, 0, 154880, 202752, 1e6, 1e-5, false}};

std::vector<KnownModel> glm4_moe_lite_presets() {
  return decoder_presets(kGlm4MoeLites, kGlm4MoeLite,
                         {{"q_lora_rank", 768},
                          {"kv_lora_rank", 512},
                          {"qk_nope_head_dim", 192},
                          {"qk_rope_head_dim", 64},
                          {"v_head_dim", 256},
                          {"n_routed_experts", 64},
                          {"num_experts_per_tok", 4},
                          {"moe_intermediate_size", 1536},
                          {"n_shared_experts", 1},
                          {"n_group", 1},
                          {"topk_group", 1},
                          {"norm_topk_prob", true},
                          {"routed_scaling_factor", 1.8}});
}

}  // namespace

Family glm4_moe_lite_family() {
  return {"glm4_moe_lite", make_glm4_moe_lite, glm4_moe_lite_presets, {}};
}

}  // namespace sluice
