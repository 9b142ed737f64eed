// Gemma 3 (arXiv:2503.19786), its part for text: Gemma 2 with norms of heads in place of soft caps,
// five layers with a window for each without, and rotary positions of their own.
#include <cmath>

#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

constexpr int64_t kHeadDim = 256;

std::unique_ptr<FamilyModel> make_gemma3(const ModelConfig& config) {
  if (config.boolean_or("use_bidirectional_attention", false))
    config.refuse("attention looks ahead", "sluice runs models that generate text");
  const bool has_bias = config.boolean_or("attention_bias", false);
  // Published files of the larger models leave out what is so.
  DecoderTraits traits{
      .family = "gemma3_text",
      .heads = 8,
      .vocab_size = 262208,
      .head_dim = kHeadDim,
      .kv_heads = 4,
      .max_positions = 131072,
      .is_tied = true,
      .norm_added = 1,
      .place = NormPlace::kAround,
      .qk_norm = QkNorm::kEachHead,
      .has_qkv_bias = has_bias,
      .has_o_bias = has_bias,
      .activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
      .attention_scale = 1 / std::sqrt(read_factor(config, "query_pre_attn_scalar", 256)),
      .attention_cap = read_soft_cap(config, "attn_logit_softcapping", 0),
      .embed_scale = static_cast<float>(std::sqrt(config.number("hidden_size"))),
      .logit_cap = read_soft_cap(config, "final_logit_softcapping", 0)};
  traits.names.mlp_norm = {"pre_feedforward_layernorm", "ffn_norm"};
  const int64_t head_dim = read_head_dim(config, kHeadDim);
  traits.ropes = {read_rope(config, head_dim, {.theta = 1e6, .layer_type = "full_attention"}),
                  read_rope(config, head_dim,
                            {.theta_key = "rope_local_base_freq",
                             .is_scaled = false,
                             .layer_type = "sliding_attention"})};
  const int64_t window = read_sliding_window(config, 4096);
  const int64_t period = config.integer_or("sliding_window_pattern", 6, 1, 4096);
  for (const bool has_window : read_window_layers(config, period))
    traits.layers.push_back({has_window ? window : 0, has_window ? 1 : 0});
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kGemma3{"Gemma3ForCausalLM", "gemma3_text", 2, 1};
constexpr DecoderSizes kSmallGemma3s[] = {
    {"gemma-3-270m", 18, 640, 2048, 4, 1, 256, 262144, 32768, 1e6, 1e-6, true},
    {"gemma-3-1b", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6, 1e-6, true}};
constexpr DecoderSizes kGemma3s[] = {
    {"gemma-3-4b", 34, 2560, 10240, 8, 4, 256, 262208, 131072, 1e6, 1e-6, true},
    {"gemma-3-12b", 48, 3840, 15360, 16, 8, 256, 262208, 131072, 1e6, 1e-6, true}};
constexpr DecoderSizes kLargeGemma3s[] = {
    {"gemma-3-27b", 62, 5376, 21504, 32, 16, 128, 262208, 131072, 1e6, 1e-6, true}};

std::vector<KnownModel> gemma3_presets() {
  nlohmann::ordered_json changes{
      {"hidden_act", nullptr},        {"hidden_activation", "gelu_pytorch_tanh"},
      {"sliding_window", 512},        {"sliding_window_pattern", 6},
      {"query_pre_attn_scalar", 256}, {"rope_local_base_freq", 10000.0}};
  std::vector<KnownModel> presets = decoder_presets(kSmallGemma3s, kGemma3, changes);
  changes["sliding_window"] = 1024;
  changes["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  add_presets(presets, kGemma3s, kGemma3, changes);
  changes["query_pre_attn_scalar"] = 168;
  add_presets(presets, kLargeGemma3s, kGemma3, changes);
  return presets;
}

std::string gemma3_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "Gemma3ForCausalLM",
                                 .model_type = "gemma3_text",
                                 .also = {"attention.sliding_window", "rope.freq_base_swa"}});
  config["hidden_activation"] = "gelu_pytorch_tanh";
  if (const auto value = keys.integer(keys.prefix() + "attention.sliding_window"))
    config["sliding_window"] = *value;
  if (const auto value = keys.number(keys.prefix() + "rope.freq_base_swa"))
    config["rope_local_base_freq"] = *value;
  // Files don't say it: of 27B alone it is not the width of a head.
  const int64_t heads = config["num_attention_heads"], layers = config["num_hidden_layers"];
  config["query_pre_attn_scalar"] = layers == 62 ? config["hidden_size"].get<int64_t>() / heads
                                                 : config["head_dim"].get<int64_t>();
  return config.dump(2);
}

}  // namespace

Family gemma3_family() {
  return {"gemma3_text", make_gemma3, gemma3_presets, {"gemma3", gemma3_of_gguf}};
}

}  // namespace sluice
