// DeepSeek-V2: latent attention, whose rotary positions turn pairs, and behind the first layers
// mixtures of experts whose router may choose among groups.
#include "src/model/families/latent_traits.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

// Weights are what the softmax over all experts gives, whatever was chosen (Hugging Face
// transformers reads no "norm_topk_prob").
Mixture read_experts(const ModelConfig& config) {
  if (config.boolean_or("norm_topk_prob", false))
    config.refuse("\"norm_topk_prob\" is true", "transformers ignores it in this family");
  Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 64, 0, 1407);
  const std::string method = config.text_or("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    config.refuse("\"topk_method\" \"" + method + "\" is not supported",
                  "sluice knows greedy and group_limited_greedy");
  if (method == "group_limited_greedy") read_groups(config, 0, 0, mixture.router);
  mixture.router.others_count_zero = true;
  mixture.router.scale = read_factor(config, "routed_scaling_factor", 1);
  read_shared_experts(config, 2, mixture);
  return mixture;
}

std::unique_ptr<FamilyModel> make_deepseek_v2(const ModelConfig& config) {
  DecoderTraits traits{.family = "deepseek_v2", .rope = RopeLayout::kPairs};
  read_latent_attention(config, {}, traits);
  traits.mixture_layers = read_dense_beginning(config, 0);
  if (has_mixtures(traits)) traits.mixture = read_experts(config);
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family deepseek_v2_family() {
  return {"deepseek_v2", make_deepseek_v2, [] { return std::vector<KnownModel>{}; }, {}};
}

}  // namespace sluice
