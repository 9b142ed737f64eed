// Nemotron 4 and Minitron: LayerNorm with gains stored less one, half of each head turned, a plain
// MLP with squared relu.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_nemotron(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "nemotron",
                       .max_positions = 4096,
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .norm_added = 1,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false),
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "relu2")};
  traits.keys.eps = "norm_eps";
  traits.ropes = {read_rope(config, read_head_dim(config), {.share = 0.5})};
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kNemotron{"NemotronForCausalLM", "nemotron", 2, 3};
constexpr DecoderSizes kNemotrons[] = {
    {"minitron-4b", 32, 3072, 9216, 24, 8, 128, 256000, 4096, 1e4, 1e-5, false},
    {"minitron-8b", 32, 4096, 16384, 48, 8, 128, 256000, 4096, 1e4, 1e-5, false},
    {"nemotron-4-15b", 32, 6144, 24576, 48, 8, 128, 256000, 4096, 1e4, 1e-5, false},
    {"nemotron-4-340b", 96, 18432, 73728, 96, 8, 192, 256000, 4096, 1e4, 1e-5, false}};

std::vector<KnownModel> nemotron_presets() {
  return decoder_presets(kNemotrons, kNemotron,
                         {{"rms_norm_eps", nullptr},
                          {"norm_eps", 1e-5},
                          {"hidden_act", "relu2"},
                          {"partial_rotary_factor", 0.5}});
}

std::string nemotron_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "NemotronForCausalLM",
                                                     .model_type = "nemotron",
                                                     .eps = "norm_eps",
                                                     .turns_a_part = true});
  config["hidden_act"] = "relu2";
  config["attention_bias"] = keys.has_attention_bias();
  config["mlp_bias"] = keys.tensor("blk.0.ffn_up.bias") != nullptr;
  return config.dump(2);
}

}  // namespace

Family nemotron_family() {
  return {"nemotron", make_nemotron, nemotron_presets, {"nemotron", nemotron_of_gguf}};
}

}  // namespace sluice
