// SmolLM3: the decoder without rotary positions in every fourth layer.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_smollm3(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "smollm3",
                       .kv_heads = 4,
                       .max_positions = 32768,
                       .is_tied = true,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false),
                       .gguf_pairs_rows = true};
  traits.ropes = {read_rope(config, read_head_dim(config), {.theta = 2e6})};
  const int64_t layers = config.integer("num_hidden_layers", 1, 4096);
  const int64_t period = config.integer_or("no_rope_layer_interval", 4, 1, 4096);
  const std::vector<int32_t> turned = config.integers("no_rope_layers");  // 1: it has rotary ones
  if (!turned.empty() && std::ssize(turned) != layers)
    config.refuse("\"no_rope_layers\" has not one number a layer", "mend the config.json");
  const int64_t window =
      config.boolean_or("use_sliding_window", false) ? read_sliding_window(config, 0) : 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool is_turned =
        turned.empty() ? (layer + 1) % period != 0 : turned[static_cast<size_t>(layer)] != 0;
    traits.layers.push_back({is_turned ? 0 : window, is_turned ? 0 : -1});
  }
  if (config.has("layer_types")) {
    const std::vector<bool> has_window = read_window_layers(config, 1);
    for (size_t layer = 0; layer < has_window.size(); ++layer)
      traits.layers[layer].window = has_window[layer] ? window : 0;
  }
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kSmolLm3{"SmolLM3ForCausalLM", "smollm3", 128000, 128012};
constexpr DecoderSizes kSmolLm3s[] = {
    {"smollm3-3b", 36, 2048, 11008, 16, 4, 0, 128256, 65536, 5e6, 1e-6, true}};

std::vector<KnownModel> smollm3_presets() { return decoder_presets(kSmolLm3s, kSmolLm3); }

std::string smollm3_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "SmolLM3ForCausalLM", .model_type = "smollm3"});

  return config.dump(2);
}

}  // namespace

Family smollm3_family() {
  return {"smollm3", make_smollm3, smollm3_presets, {"smollm3", smollm3_of_gguf}};
}

}  // namespace sluice
