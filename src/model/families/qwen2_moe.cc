// Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, experts, and beside them one that every row goes to
// as far as a gate says.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen2_moe(const ModelConfig& config) {
  if (config.boolean_or("use_sliding_window", false))
    config.refuse("\"use_sliding_window\" is true", "sluice runs this family without windows");
  DecoderTraits traits{.family = "qwen2_moe",
                       .max_positions = 32768,
                       .has_qkv_bias = config.boolean_or("qkv_bias", true)};
  Mixture mixture = read_mixture(config, {}, 60, 4, 1408);
  mixture.router.renormalises = config.boolean_or("norm_topk_prob", false);
  read_gated_expert(config, 5632, mixture, traits.names);
  traits.mixture = mixture;
  traits.mixture_layers = read_sparse_step(config);
  return make_decoder(config, std::move(traits));
}

std::string qwen2_moe_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(keys, {"Qwen2MoeForCausalLM", "qwen2_moe"},
                                              {.shared_width = "shared_expert_intermediate_size"});
  config["qkv_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

constexpr DecoderKind kQwen2Moe{"Qwen2MoeForCausalLM", "qwen2_moe", 151643, 151643};
constexpr DecoderSizes kQwen2Moes[] = {
    {"qwen1.5-moe-a2.7b", 24, 2048, 5632, 16, 16, 0, 151936, 8192, 1e6, 1e-6, false}};

std::vector<KnownModel> qwen2_moe_presets() {
  return decoder_presets(kQwen2Moes, kQwen2Moe,
                         {{"num_experts", 60},
                          {"num_experts_per_tok", 4},
                          {"moe_intermediate_size", 1408},
                          {"shared_expert_intermediate_size", 5632},
                          {"norm_topk_prob", false}});
}

}  // namespace

Family qwen2_moe_family() {
  return {"qwen2_moe", make_qwen2_moe, qwen2_moe_presets, {"qwen2moe", qwen2_moe_of_gguf}};
}

}  // namespace sluice
