// Gemma 2 (arXiv:2408.00118): Gemma with norms around both parts of a layer, every other layer with
// a window, and soft caps of scores and logits.
#include <cmath>

#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gemma2(const ModelConfig& config) {
  if (config.boolean_or("use_bidirectional_attention", false))
    config.refuse("attention looks ahead", "sluice runs models that generate text");
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{
      .family = "gemma2",
      .head_dim = 256,
      .is_tied = true,
      .norm_added = 1,
      .place = NormPlace::kAround,
      .has_qkv_bias = has_bias,
      .has_o_bias = has_bias,
      .activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
      .attention_scale = 1 / std::sqrt(read_factor(config, "query_pre_attn_scalar", 256)),
      .attention_cap = read_soft_cap(config, "attn_logit_softcapping", 50),
      .embed_scale = static_cast<float>(std::sqrt(config.number("hidden_size"))),
      .logit_cap = read_soft_cap(config, "final_logit_softcapping", 30)};
  traits.names.mlp_norm = {"pre_feedforward_layernorm", "ffn_norm"};
  const int64_t window = read_sliding_window(config, 4096);
  for (const bool has_window : read_window_layers(config, 2))
    traits.layers.push_back({has_window ? window : 0, 0});
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kGemma2{"Gemma2ForCausalLM", "gemma2", 2, 1};
constexpr DecoderSizes kGemma2s[] = {
    {"gemma-2-2b", 26, 2304, 9216, 8, 4, 256, 256000, 8192, 1e4, 1e-6, true},
    {"gemma-2-9b", 42, 3584, 14336, 16, 8, 256, 256000, 8192, 1e4, 1e-6, true}};
constexpr DecoderSizes kLargeGemma2s[] = {
    {"gemma-2-27b", 46, 4608, 36864, 32, 16, 128, 256000, 8192, 1e4, 1e-6, true}};

std::vector<KnownModel> gemma2_presets() {
  nlohmann::ordered_json changes{
      {"hidden_act", nullptr},          {"hidden_activation", "gelu_pytorch_tanh"},
      {"sliding_window", 4096},         {"query_pre_attn_scalar", 256},
      {"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}};
  std::vector<KnownModel> presets = decoder_presets(kGemma2s, kGemma2, changes);
  changes["query_pre_attn_scalar"] = 144;
  add_presets(presets, kLargeGemma2s, kGemma2, changes);
  return presets;
}

std::string gemma2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys,
      {.architecture = "Gemma2ForCausalLM",
       .model_type = "gemma2",
       .also = {"attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"}});
  config["hidden_activation"] = "gelu_pytorch_tanh";
  if (const auto value = keys.number(keys.prefix() + "attn_logit_softcapping"))
    config["attn_logit_softcapping"] = *value;
  if (const auto value = keys.number(keys.prefix() + "final_logit_softcapping"))
    config["final_logit_softcapping"] = *value;
  if (const auto value = keys.integer(keys.prefix() + "attention.sliding_window"))
    config["sliding_window"] = *value;
  // Files don't say it: of 27B alone it is not the width of a head.
  const int64_t heads = config["num_attention_heads"], layers = config["num_hidden_layers"];
  config["query_pre_attn_scalar"] = layers == 46 ? config["hidden_size"].get<int64_t>() / heads
                                                 : config["head_dim"].get<int64_t>();
  return config.dump(2);
}

}  // namespace

Family gemma2_family() {
  return {"gemma2", make_gemma2, gemma2_presets, {"gemma2", gemma2_of_gguf}};
}

}  // namespace sluice
