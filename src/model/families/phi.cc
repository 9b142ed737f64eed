// Phi-1, 1.5 and 2: attention and MLP of the same normed input, biases everywhere, a part of each
// head turned.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_phi(const ModelConfig& config) {
  if (config.boolean_or("qk_layernorm", false))
    config.refuse("heads of q and k have norms", "such models are not read");
  DecoderTraits traits{.family = "phi",
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .residual = Residual::kParallel,
                       .has_qkv_bias = true,
                       .has_o_bias = true,
                       .has_mlp_bias = true,
                       .has_head_bias = true,
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "gelu_new")};
  traits.keys.eps = "layer_norm_eps";
  traits.ropes = {read_rope(config, read_head_dim(config), {.share = 0.5})};
  traits.names.o.name = "self_attn.dense";
  traits.names.up.name = "mlp.fc1";
  traits.names.down.name = "mlp.fc2";
  traits.names.norm.name = "final_layernorm";
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kPhi{"PhiForCausalLM", "phi", 50256, 50256};
constexpr DecoderSizes kPhi1s[] = {
    {"phi-1", 24, 2048, 8192, 32, 32, 0, 51200, 2048, 1e4, 1e-5, false},
    {"phi-1.5", 24, 2048, 8192, 32, 32, 0, 51200, 2048, 1e4, 1e-5, false}};
constexpr DecoderSizes kPhi2s[] = {
    {"phi-2", 32, 2560, 10240, 32, 32, 0, 51200, 2048, 1e4, 1e-5, false}};

std::vector<KnownModel> phi_presets() {
  nlohmann::ordered_json changes{{"rms_norm_eps", nullptr},
                                 {"layer_norm_eps", 1e-5},
                                 {"hidden_act", "gelu_new"},
                                 {"partial_rotary_factor", 0.5}};
  std::vector<KnownModel> presets = decoder_presets(kPhi1s, kPhi, changes);
  changes["partial_rotary_factor"] = 0.4;
  add_presets(presets, kPhi2s, kPhi, changes);
  return presets;
}

std::string phi_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "PhiForCausalLM",
                                                     .model_type = "phi",
                                                     .eps = "layer_norm_eps",
                                                     .turns_a_part = true});
  config["hidden_act"] = "gelu_new";
  return config.dump(2);
}

}  // namespace

Family phi_family() { return {"phi", make_phi, phi_presets, {"phi2", phi_of_gguf}}; }

}  // namespace sluice
