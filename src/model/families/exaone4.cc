// EXAONE 4: norms behind attention and MLP and of each head; the large model has a window in three
// layers of four, and no rotary positions in the fourth.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

// "LLLG", a letter a layer over and over, or every how many-th layer has none.
int64_t read_period(const ModelConfig& config) {
  const std::string pattern = config.text_or_number("sliding_window_pattern", "4");
  if (pattern == "LLLG") return 4;
  if (pattern.empty() || pattern.size() > 3 ||
      pattern.find_first_not_of("0123456789") != std::string::npos || std::stoi(pattern) == 0)
    config.refuse("\"sliding_window_pattern\" is no number of layers and not LLLG",
                  "give \"layer_types\" instead");
  return std::stoi(pattern);
}

std::unique_ptr<FamilyModel> make_exaone4(const ModelConfig& config) {
  DecoderTraits traits{
      .family = "exaone4", .eps = 1e-5, .place = NormPlace::kBehind, .qk_norm = QkNorm::kEachHead};
  const int64_t window = read_sliding_window(config, 4096);
  if (window > 0) {
    const int64_t period = config.has("layer_types") ? 1 : read_period(config);
    for (const bool has_window : read_window_layers(config, period))
      traits.layers.push_back({has_window ? window : 0, has_window ? 0 : -1});
  }
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kExaone4{"Exaone4ForCausalLM", "exaone4", 1, 361};
constexpr DecoderSizes kSmallExaone4s[] = {
    {"exaone-4.0-1.2b", 30, 2048, 4096, 32, 8, 64, 102400, 65536, 1e6, 1e-5, true}};
constexpr DecoderSizes kExaone4s[] = {
    {"exaone-4.0-32b", 64, 5120, 27392, 40, 8, 128, 102400, 131072, 1e6, 1e-5, false}};

std::vector<KnownModel> exaone4_presets() {
  nlohmann::ordered_json changes{{"sliding_window", 4096},
                                 {"sliding_window_pattern", "LLLG"},
                                 {"rope_scaling",
                                  {{"rope_type", "llama3"},
                                   {"factor", 16.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}}}};
  std::vector<KnownModel> presets;
  for (const DecoderSizes& sizes : kSmallExaone4s) {
    nlohmann::ordered_json json = decoder_config(sizes, kExaone4);
    json["rope_scaling"] = changes["rope_scaling"];
    json["sliding_window"] = nullptr;
    presets.push_back({sizes.name, json.dump(2)});
  }
  add_presets(presets, kExaone4s, kExaone4, changes);
  return presets;
}

// Older files do not say which layers have the window: it is every but each fourth.
std::string exaone4_of_gguf(const GgufKeys& keys) {
  constexpr const char* kWindow = "attention.sliding_window";
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  nlohmann::json config = gguf_decoder_config(
      keys,
      {.architecture = "Exaone4ForCausalLM", .model_type = "exaone4", .also = {kWindow, kPattern}});
  config["sliding_window"] = nullptr;
  const auto window = keys.integer(keys.prefix() + kWindow);
  if (!window || *window == 0) return config.dump(2);
  config["sliding_window"] = *window;
  for (const bool has_window :
       keys.booleans(keys.prefix() + kPattern, config["num_hidden_layers"].get<int64_t>()))
    config["layer_types"].push_back(has_window ? "sliding_attention" : "full_attention");
  return config.dump(2);
}

}  // namespace

Family exaone4_family() {
  return {"exaone4", make_exaone4, exaone4_presets, {"exaone4", exaone4_of_gguf}};
}

}  // namespace sluice
