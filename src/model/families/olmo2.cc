// OLMo 2: norms behind attention and MLP, none before; q and k normed over all their heads.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_olmo2(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  return make_decoder(config, {.family = "olmo2",
                               .eps = 1e-5,
                               .place = NormPlace::kBehind,
                               .qk_norm = QkNorm::kWholeWidth,
                               .has_qkv_bias = has_bias,
                               .has_o_bias = has_bias});
}

constexpr DecoderKind kOlmo2{"Olmo2ForCausalLM", "olmo2", 100257, 100257};
constexpr DecoderSizes kOlmo2s[] = {
    {"olmo-2-1b", 16, 2048, 8192, 16, 16, 0, 100352, 4096, 5e5, 1e-6, false},
    {"olmo-2-7b", 32, 4096, 11008, 32, 32, 0, 100352, 4096, 5e5, 1e-6, false},
    {"olmo-2-13b", 40, 5120, 13824, 40, 40, 0, 100352, 4096, 5e5, 1e-6, false},
    {"olmo-2-32b", 64, 5120, 27648, 40, 8, 0, 100352, 4096, 5e5, 1e-6, false}};

std::vector<KnownModel> olmo2_presets() { return decoder_presets(kOlmo2s, kOlmo2); }

constexpr const char* kWindow = "attention.sliding_window";
constexpr const char* kPattern = "attention.sliding_window_pattern";
constexpr const char* kWindowTheta = "rope.freq_base_swa";

// With a window it is OLMo 3: positions are scaled in the layers without one.
std::string olmo2_of_gguf(const GgufKeys& keys) {
  const std::string p = keys.prefix();
  const int64_t window = keys.integer(p + kWindow).value_or(0);
  const bool has_windows = window > 0;
  nlohmann::json config = gguf_decoder_config(
      keys, {.architecture = has_windows ? "Olmo3ForCausalLM" : "Olmo2ForCausalLM",
             .model_type = has_windows ? "olmo3" : "olmo2",
             .also = {kWindow, kPattern, kWindowTheta},
             .has_yarn = has_windows});
  if (!has_windows) return config.dump(2);
  const int64_t layers = config["num_hidden_layers"];
  std::vector<bool> windows = keys.booleans(p + kPattern, layers);
  for (int64_t layer = std::ssize(windows); layer < layers; ++layer)
    windows.push_back((layer + 1) % 4 != 0);
  config["sliding_window"] = window;
  for (const bool has_window : windows)
    config["layer_types"].push_back(has_window ? "sliding_attention" : "full_attention");
  const nlohmann::json theta = config["rope_theta"];
  nlohmann::json full = config.value("rope_scaling", nlohmann::json{{"rope_type", "default"}});
  full["rope_theta"] = theta;
  const double window_theta = keys.number(p + kWindowTheta).value_or(theta.get<double>());
  config["rope_parameters"] = {
      {"full_attention", full},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", window_theta}}}};
  config.erase("rope_scaling");
  config.erase("rope_theta");
  return config.dump(2);
}

}  // namespace

Family olmo2_family() { return {"olmo2", make_olmo2, olmo2_presets, {"olmo2", olmo2_of_gguf}}; }

}  // namespace sluice
