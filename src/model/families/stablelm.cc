// StableLM 3B, StableLM 2 and Zephyr: LayerNorm, a quarter of each head turned, a gated MLP.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_stablelm(const ModelConfig& config) {
  DecoderTraits traits{.family = "stablelm",
                       .max_positions = 4096,
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .residual = config.boolean_or("use_parallel_residual", false)
                                       ? Residual::kParallel
                                       : Residual::kSerial,
                       .has_qkv_bias = config.boolean_or("use_qkv_bias", false)};
  if (config.boolean_or("qk_layernorm", false)) traits.qk_norm = QkNorm::kOwnTensors;
  traits.names.q_norm = {"self_attn.q_layernorm.norms", nullptr};
  traits.names.k_norm = {"self_attn.k_layernorm.norms", nullptr};
  traits.keys.eps = "layer_norm_eps";
  traits.ropes = {read_rope(config, read_head_dim(config), {.share = 0.25})};
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kStableLm{"StableLmForCausalLM", "stablelm", 100257, 100257};
constexpr DecoderSizes kStableLm2s[] = {
    {"stablelm-2-1.6b", 24, 2048, 5632, 32, 32, 0, 100352, 4096, 1e4, 1e-5, false}};
constexpr DecoderSizes kStableLms[] = {
    {"stablelm-3b-4e1t", 32, 2560, 6912, 32, 32, 0, 50304, 4096, 1e4, 1e-5, false}};

std::vector<KnownModel> stablelm_presets() {
  nlohmann::ordered_json changes{{"rms_norm_eps", nullptr},
                                 {"layer_norm_eps", 1e-5},
                                 {"partial_rotary_factor", 0.25},
                                 {"use_qkv_bias", true}};
  std::vector<KnownModel> presets = decoder_presets(kStableLm2s, kStableLm, changes);
  changes["use_qkv_bias"] = false;
  add_presets(presets, kStableLms, kStableLm, changes);
  return presets;
}

std::string stablelm_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "StableLmForCausalLM",
                                                     .model_type = "stablelm",
                                                     .eps = "layer_norm_eps",
                                                     .turns_a_part = true,
                                                     .also = {"use_parallel_residual"}});
  config["use_qkv_bias"] = keys.has_attention_bias();
  if (keys.tensor("blk.0.attn_q_norm.weight"))
    keys.refuse("heads of q and k have norms of their own",
                "give the model's Hugging Face folder: of such files this is not read");
  config["use_parallel_residual"] =
      keys.boolean(keys.prefix() + "use_parallel_residual").value_or(false);
  return config.dump(2);
}

}  // namespace

Family stablelm_family() {
  return {"stablelm", make_stablelm, stablelm_presets, {"stablelm", stablelm_of_gguf}};
}

}  // namespace sluice
