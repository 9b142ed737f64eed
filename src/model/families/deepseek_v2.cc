// DeepSeek-V2: latent attention, whose rotary positions turn pairs, and behind the first layers
// mixtures of experts whose router may choose among groups.
#include <nlohmann/json.hpp>

#include "src/model/families/deepseek_presets.h"
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

std::vector<KnownModel> deepseek_v2_presets() {
  nlohmann::ordered_json json{{"architectures", {"DeepseekV2ForCausalLM"}},
                              {"model_type", "deepseek_v2"},
                              {"hidden_size", 5120},
                              {"intermediate_size", 12288},
                              {"moe_intermediate_size", 1536},
                              {"num_hidden_layers", 60},
                              {"num_attention_heads", 128},
                              {"num_key_value_heads", 128},
                              {"n_routed_experts", 160},
                              {"n_shared_experts", 2},
                              {"num_experts_per_tok", 6},
                              {"topk_method", "group_limited_greedy"},
                              {"n_group", 8},
                              {"topk_group", 3},
                              {"norm_topk_prob", false},
                              {"routed_scaling_factor", 16.0},
                              {"first_k_dense_replace", 1},
                              {"bos_token_id", 100000},
                              {"eos_token_id", 100001}};
  add_deepseek_values(102400, 0.707, json);
  return {{"deepseek-v2", json.dump(2)}};
}

}  // namespace

Family deepseek_v2_family() {
  return {"deepseek_v2", make_deepseek_v2, deepseek_v2_presets, {"deepseek2", deepseek_of_gguf}};
}

}  // namespace sluice
