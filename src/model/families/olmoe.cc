// OLMoE: a mixture of experts in every layer, q and k normed over all their heads.
#include <fmt/format.h>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_olmoe(const ModelConfig& config) {
  const double limit = config.number_or("clip_qkv", 0);
  if (config.has("clip_qkv") && !(limit > 0))
    config.refuse(fmt::format("\"clip_qkv\" is {}", limit), "write a number above 0, or null");
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "olmoe",
                       .max_positions = 4096,
                       .eps = 1e-5,
                       .qk_norm = QkNorm::kWholeWidth,
                       .qkv_limit = static_cast<float>(limit),
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias};
  traits.mixture = read_mixture(config, {.width = "intermediate_size"}, 64, 8, 2048);
  traits.mixture->router.renormalises = config.boolean_or("norm_topk_prob", false);
  return make_decoder(config, std::move(traits));
}

std::string olmoe_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_mixture_config(keys, {"OlmoeForCausalLM", "olmoe"}, {.width = "intermediate_size"});
  config["attention_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

constexpr DecoderKind kOlmoe{"OlmoeForCausalLM", "olmoe", 50279, 50279};
constexpr DecoderSizes kOlmoes[] = {
    {"olmoe-1b-7b", 16, 2048, 1024, 16, 16, 0, 50304, 4096, 1e4, 1e-5, false}};

std::vector<KnownModel> olmoe_presets() {
  return decoder_presets(kOlmoes, kOlmoe, {{"num_experts", 64}, {"num_experts_per_tok", 8}});
}

}  // namespace

Family olmoe_family() { return {"olmoe", make_olmoe, olmoe_presets, {"olmoe", olmoe_of_gguf}}; }

}  // namespace sluice
