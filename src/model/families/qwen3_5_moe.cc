// Qwen3.5's and 3.6's mixtures of experts, their part for text: gated delta nets and attention as
// in the dense ones, experts in every layer, and beside them one that every row goes to as far as a
// gate says. Checkpoints have a layer's experts in stacks, or one by one.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/delta_traits.h"
#include "src/model/families/gguf_delta.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen3_5_moe(const ModelConfig& config) {
  DecoderTraits traits = read_delta_nets(config, "qwen3_5_moe_text");
  traits.kv_heads = 2;
  Mixture mixture = read_mixture(config, {}, 256, 8, 512);
  mixture.router.renormalises = true;
  read_gated_expert(config, 512, mixture, traits.names);
  mixture.has_whole_names = true;
  traits.names.gate_up_stack = {"mlp.experts.gate_up_proj", nullptr};
  traits.names.down_stack = {"mlp.experts.down_proj", nullptr};
  traits.keys.intermediate = nullptr;  // no layer is without experts
  traits.intermediate_size = mixture.width;
  traits.mixture = mixture;
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kQwen35Moe{"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 248044, 248044};

constexpr DecoderSizes kSmallQwen35Moes[] = {
    {"qwen3.5-35b-a3b", 40, 2048, 512, 16, 2, 256, 248320, 262144, 1e7, 1e-6, false}};
constexpr DecoderSizes kLargeQwen35Moes[] = {
    {"qwen3.5-397b-a17b", 60, 4096, 1024, 32, 2, 256, 248320, 262144, 1e7, 1e-6, false}};

std::vector<KnownModel> qwen3_5_moe_presets() {
  nlohmann::ordered_json changes{{"partial_rotary_factor", 0.25},
                                 {"full_attention_interval", 4},
                                 {"linear_num_key_heads", 16},
                                 {"linear_num_value_heads", 32},
                                 {"linear_key_head_dim", 128},
                                 {"linear_value_head_dim", 128},
                                 {"linear_conv_kernel_dim", 4},
                                 {"attn_output_gate", true},
                                 {"intermediate_size", nullptr},
                                 {"num_experts", 256},
                                 {"num_experts_per_tok", 8},
                                 {"moe_intermediate_size", 512},
                                 {"shared_expert_intermediate_size", 512}};
  std::vector<KnownModel> presets = decoder_presets(kSmallQwen35Moes, kQwen35Moe, changes);
  changes["linear_num_value_heads"] = 64;
  changes["num_experts"] = 512;
  changes["num_experts_per_tok"] = 10;
  changes["moe_intermediate_size"] = 1024;
  changes["shared_expert_intermediate_size"] = 1024;
  add_presets(presets, kLargeQwen35Moes, kQwen35Moe, changes);
  return presets;
}

std::string qwen3_5_moe_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_mixture_config(keys,
                          {.architecture = kQwen35Moe.architecture,
                           .model_type = kQwen35Moe.model_type,
                           .turns_a_part = true,
                           .also = {std::begin(kGgufDeltaKeys), std::end(kGgufDeltaKeys)}},
                          {.shared_width = "shared_expert_intermediate_size",
                           .renormalises = true,
                           .always_does_so = true});
  config.erase("intermediate_size");
  add_gguf_delta_keys(keys, true, config);
  return config.dump(2);
}

}  // namespace

Family qwen3_5_moe_family() {
  return {"qwen3_5_moe_text",
          make_qwen3_5_moe,
          qwen3_5_moe_presets,
          {"qwen35moe", qwen3_5_moe_of_gguf}};
}

}  // namespace sluice
