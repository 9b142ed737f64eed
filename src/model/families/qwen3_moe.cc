// Qwen3's mixtures of experts: its attention, and in most layers experts.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

// A window, where it is used, is every layer's: "max_window_layers" is not read.
std::unique_ptr<FamilyModel> make_qwen3_moe(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  const bool has_window = config.boolean_or("use_sliding_window", false);
  DecoderTraits traits{.family = "qwen3_moe",
                       .max_positions = 32768,
                       .qk_norm = QkNorm::kEachHead,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .sliding_window = has_window ? read_sliding_window(config, 4096) : 0};
  traits.mixture = read_mixture(config, {}, 128, 8, 768);
  const std::string type = config.text_or("model_type", "");
  const bool sees = type == "qwen3_vl_moe_text";  // whose class reads no such key
  traits.mixture->router.renormalises =
      sees || config.boolean_or("norm_topk_prob", type == "qwen3_omni_moe_text");
  if (sees) {
    traits.mixture->has_turned_halves = true;
    traits.names.gate_up_stack = {"mlp.experts.gate_up_proj", nullptr};
    traits.names.down_stack = {"mlp.experts.down_proj", nullptr};
  }
  traits.mixture_layers = read_sparse_step(config);
  return make_decoder(config, std::move(traits));
}

std::string qwen3_moe_of_gguf(const GgufKeys& keys) {
  const GgufDecoderKind kind{.architecture = "Qwen3MoeForCausalLM",
                             .model_type = "qwen3_moe",
                             .also = {"rope.dimension_sections", "n_deepstack_layers"},
                             .has_yarn = true};
  nlohmann::json config = gguf_mixture_config(keys, kind, {.renormalises = true});
  config["attention_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

constexpr DecoderKind kQwen3Moe{"Qwen3MoeForCausalLM", "qwen3_moe", 151643, 151645};
constexpr DecoderSizes kSmall[] = {
    {"qwen3-30b-a3b", 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6, 1e-6, false}};
constexpr DecoderSizes kLarge[] = {
    {"qwen3-235b-a22b", 94, 4096, 12288, 64, 4, 128, 151936, 40960, 1e6, 1e-6, false}};

std::vector<KnownModel> qwen3_moe_presets() {
  nlohmann::ordered_json changes{{"num_experts", 128},
                                 {"num_experts_per_tok", 8},
                                 {"moe_intermediate_size", 768},
                                 {"norm_topk_prob", true}};
  std::vector<KnownModel> presets = decoder_presets(kSmall, kQwen3Moe, changes);
  changes["moe_intermediate_size"] = 1536;
  add_presets(presets, kLarge, kQwen3Moe, changes);
  return presets;
}

}  // namespace

Family qwen3_moe_family() {
  return {"qwen3_moe",
          make_qwen3_moe,
          qwen3_moe_presets,
          {"qwen3moe", qwen3_moe_of_gguf, {"qwen3vlmoe"}},
          {"qwen3_vl_moe_text", "qwen3_omni_moe_text"}};
}

}  // namespace sluice
