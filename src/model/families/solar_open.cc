// Solar Open: Llama's attention, and in every layer GLM-4.5's mixture of experts.
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_solar_open(const ModelConfig& config) {
  DecoderTraits traits{.family = "solar_open",
                       .head_dim = 128,
                       .intermediate_size = 1,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .has_qkv_bias = config.boolean_or("attention_bias", false)};
  traits.keys.intermediate = nullptr;
  traits.ropes = {read_rope(config, read_head_dim(config, 128), {.theta = 1e6})};
  Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 128, 8, 1280);
  read_corrected_router(config, 1, mixture);
  read_groups(config, 1, 1, mixture.router);
  read_shared_experts(config, 1, mixture);
  traits.intermediate_size = mixture.width;
  traits.mixture = mixture;
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family solar_open_family() { return {"solar_open", make_solar_open, nullptr, {}}; }

}  // namespace sluice
