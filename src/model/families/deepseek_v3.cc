// DeepSeek-V3, R1 and Kimi-K2: latent attention, whose rotary positions turn pairs unless
// config.json says otherwise, and behind the first layers mixtures of experts with corrected
// routers.
#include <nlohmann/json.hpp>

#include "src/model/families/deepseek_presets.h"
#include "src/model/families/latent_traits.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_deepseek_v3(const ModelConfig& config) {
  const bool has_pairs = config.boolean_or("rope_interleave", true);
  DecoderTraits traits{.family = "deepseek_v3",
                       .max_positions = 4096,
                       .rope = has_pairs ? RopeLayout::kPairs : RopeLayout::kHalves};
  read_latent_attention(config, {}, traits);
  traits.mixture_layers = read_dense_beginning(config, 3);
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 256, 8, 2048);
    read_corrected_router(config, 2.5, mixture);
    read_groups(config, 8, 4, mixture.router);
    read_shared_experts(config, 1, mixture);
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

std::vector<KnownModel> deepseek_v3_presets() {
  nlohmann::ordered_json json{{"architectures", {"DeepseekV3ForCausalLM"}},
                              {"model_type", "deepseek_v3"},
                              {"hidden_size", 7168},
                              {"intermediate_size", 18432},
                              {"moe_intermediate_size", 2048},
                              {"num_hidden_layers", 61},
                              {"num_attention_heads", 128},
                              {"num_key_value_heads", 128},
                              {"n_routed_experts", 256},
                              {"n_shared_experts", 1},
                              {"num_experts_per_tok", 8},
                              {"n_group", 8},
                              {"topk_group", 4},
                              {"norm_topk_prob", true},
                              {"routed_scaling_factor", 2.5},
                              {"first_k_dense_replace", 3},
                              {"bos_token_id", 0},
                              {"eos_token_id", 1}};
  add_deepseek_values(129280, 1.0, json);
  return {{"deepseek-v3", json.dump(2)}};
}

}  // namespace

Family deepseek_v3_family() { return {"deepseek_v3", make_deepseek_v3, deepseek_v3_presets, {}}; }

}  // namespace sluice
