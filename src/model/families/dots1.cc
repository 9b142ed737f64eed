// dots.llm1: Qwen3's attention, of whose layers some may have a window, and DeepSeek-V3's mixtures
// of experts.
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_dots1(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "dots1",
                       .qk_norm = QkNorm::kEachHead,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .layers = read_late_windows(config, 4096, 62)};
  traits.mixture_layers = read_dense_beginning(config, 0);
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 0, 0, 1408);
    read_corrected_router(config, 1, mixture);
    mixture.router.renormalises = config.boolean_or("norm_topk_prob", false);
    read_groups(config, 1, 1, mixture.router);
    read_shared_experts(config, 0, mixture);
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family dots1_family() { return {"dots1", make_dots1, nullptr, {}}; }

}  // namespace sluice
