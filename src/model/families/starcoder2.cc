// StarCoder2: LayerNorm, biases everywhere, a plain MLP, a window.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_starcoder2(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("use_bias", true);
  DecoderTraits traits{.family = "starcoder2",
                       .kv_heads = 2,
                       .max_positions = 4096,
                       .eps = 1e-5,
                       .is_tied = true,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = has_bias,
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "gelu_pytorch_tanh"),
                       .sliding_window = read_sliding_window(config, 0)};
  traits.keys.eps = "norm_epsilon";
  traits.names.up.name = "mlp.c_fc";
  traits.names.down.name = "mlp.c_proj";
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kStarCoder2{"Starcoder2ForCausalLM", "starcoder2", 0, 0};
constexpr DecoderSizes kStarCoder2s[] = {
    {"starcoder2-3b", 30, 3072, 12288, 24, 2, 0, 49152, 16384, 999999.4420358813, 1e-5, true},
    {"starcoder2-7b", 32, 4608, 18432, 36, 4, 0, 49152, 16384, 1e6, 1e-5, true},
    {"starcoder2-15b", 40, 6144, 24576, 48, 4, 0, 49152, 16384, 1e5, 1e-5, false}};

std::vector<KnownModel> starcoder2_presets() {
  return decoder_presets(kStarCoder2s, kStarCoder2,
                         {{"rms_norm_eps", nullptr},
                          {"norm_epsilon", 1e-5},
                          {"hidden_act", "gelu_pytorch_tanh"},
                          {"use_bias", true},
                          {"sliding_window", 4096}});
}

std::string starcoder2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "Starcoder2ForCausalLM",
                                                     .model_type = "starcoder2",
                                                     .eps = "norm_epsilon",
                                                     .also = {"attention.sliding_window"}});
  // The usual converter leaves it out; all released models have this one.
  constexpr int64_t kReleased = 4096;
  config["sliding_window"] =
      keys.integer(keys.prefix() + "attention.sliding_window").value_or(kReleased);
  config["hidden_act"] = "gelu_pytorch_tanh";
  config["use_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

}  // namespace

Family starcoder2_family() {
  return {"starcoder2", make_starcoder2, starcoder2_presets, {"starcoder2", starcoder2_of_gguf}};
}

}  // namespace sluice
