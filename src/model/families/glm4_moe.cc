// GLM-4.5 to 4.7 and Air: mixtures with corrected routers behind the first layers, half of each
// head turned.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_glm4_moe(const ModelConfig& config) {
  DecoderTraits traits{.family = "glm4_moe",
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .has_qkv_bias = config.boolean_or("attention_bias", false)};
  if (config.boolean_or("use_qk_norm", false)) traits.qk_norm = QkNorm::kEachHead;
  traits.names.mlp_norm.gguf = "post_attention_norm";
  traits.ropes = {read_rope(config, read_head_dim(config), {.share = 0.5})};
  Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 128, 8, 1408);
  read_corrected_router(config, 1, mixture);
  read_groups(config, 1, 1, mixture.router);
  read_shared_experts(config, 1, mixture);
  traits.mixture = mixture;
  traits.mixture_layers = read_dense_beginning(config, 1);
  return make_decoder(config, std::move(traits));
}

std::string glm4_moe_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(
      keys, {.architecture = "Glm4MoeForCausalLM", .model_type = "glm4_moe", .turns_a_part = true},
      {.experts = "n_routed_experts",
       .scale = "routed_scaling_factor",
       .beginning = "first_k_dense_replace",
       .renormalises = true,
       .has_groups = true,
       .has_shared = true,
       .gating = GgufGating::kSigmoid});
  config["attention_bias"] = keys.has_attention_bias();
  config["use_qk_norm"] = keys.tensor("blk.0.attn_q_norm.weight") != nullptr;
  // The family turns a half where nothing is said.
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  return config.dump(2);
}

constexpr DecoderKind kGlm4Moe{"Glm4MoeForCausalLM", "glm4_moe", 151329, 151329};
constexpr DecoderSizes kGlm4Moes[] = {
    {"glm-4.5-air", 46, 4096, 10944, 96, 8, 128, 151552, 131072, 1e6, 1e-5, false}};

std::vector<KnownModel> glm4_moe_presets() {
  return decoder_presets(kGlm4Moes, kGlm4Moe,
                         {{"partial_rotary_factor", 0.5},
                          {"attention_bias", true},
                          {"use_qk_norm", false},
                          {"n_routed_experts", 128},
                          {"num_experts_per_tok", 8},
                          {"moe_intermediate_size", 1408},
                          {"n_shared_experts", 1},
                          {"first_k_dense_replace", 1},
                          {"n_group", 1},
                          {"topk_group", 1},
                          {"norm_topk_prob", true},
                          {"routed_scaling_factor", 1.0}});
}

}  // namespace

Family glm4_moe_family() {
  return {"glm4_moe",
          make_glm4_moe,
          glm4_moe_presets,
          {"glm4moe", glm4_moe_of_gguf},
          {"glm4v_moe_text"}};
}

}  // namespace sluice
