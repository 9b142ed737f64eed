// Command R: attention and MLP side by side, heads turned in pairs.
#include "src/model/families/cohere_traits.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_cohere(const ModelConfig& config) {
  DecoderTraits traits = cohere_traits(config, "cohere");
  if (config.boolean_or("use_qk_norm", false)) traits.qk_norm = QkNorm::kOwnGains;
  traits.ropes = {read_rope(config, read_head_dim(config), {.theta = 500000})};
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kCohere{"CohereForCausalLM", "cohere", 5, 255001};
constexpr DecoderSizes kCoheres[] = {
    {"aya-23-8b", 32, 4096, 14336, 32, 8, 0, 256000, 8192, 1e4, 1e-5, true},
    {"command-r-08-2024", 40, 8192, 24576, 64, 8, 0, 256000, 131072, 4e6, 1e-5, true},
    {"command-r-35b", 40, 8192, 22528, 64, 64, 0, 256000, 131072, 8e6, 1e-5, true}};

std::vector<KnownModel> cohere_presets() {
  return decoder_presets(
      kCoheres, kCohere,
      {{"rms_norm_eps", nullptr}, {"layer_norm_eps", 1e-5}, {"logit_scale", 0.0625}});
}

std::string cohere_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "CohereForCausalLM",
                                                     .model_type = "cohere",
                                                     .eps = "layer_norm_eps",
                                                     .also = {"logit_scale"}});
  if (const auto value = keys.number(keys.prefix() + "logit_scale")) config["logit_scale"] = *value;
  config["attention_bias"] = keys.has_attention_bias();
  config["use_qk_norm"] = keys.tensor("blk.0.attn_q_norm.weight") != nullptr;
  return config.dump(2);
}

}  // namespace

Family cohere_family() {
  return {"cohere", make_cohere, cohere_presets, {"command-r", cohere_of_gguf}};
}

}  // namespace sluice
