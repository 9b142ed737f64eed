// Command R7B and Command A: Command R with a window and rotary positions in three layers of four,
// neither in the fourth.
#include "src/model/families/cohere_traits.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_cohere2(const ModelConfig& config) {
  DecoderTraits traits = cohere_traits(config, "cohere2");
  const int64_t window = read_sliding_window(config, 4096);
  const int64_t period = config.integer_or("sliding_window_pattern", 4, 1, 4096);
  for (const bool has_window : read_window_layers(config, period))
    traits.layers.push_back({has_window ? window : 0, has_window ? 0 : -1});
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kCohere2{"Cohere2ForCausalLM", "cohere2", 5, 255001};
constexpr DecoderSizes kCohere2s[] = {
    {"command-r7b", 32, 4096, 14336, 32, 8, 0, 256000, 132096, 5e4, 1e-5, true},
    {"command-a-111b", 64, 12288, 36864, 96, 8, 0, 256000, 131072, 5e4, 1e-5, true}};

std::vector<KnownModel> cohere2_presets() {
  return decoder_presets(kCohere2s, kCohere2,
                         {{"rms_norm_eps", nullptr},
                          {"layer_norm_eps", 1e-5},
                          {"logit_scale", 0.25},
                          {"sliding_window", 4096},
                          {"sliding_window_pattern", 4}});
}

std::string cohere2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "Cohere2ForCausalLM",
                                 .model_type = "cohere2",
                                 .eps = "layer_norm_eps",
                                 .also = {"logit_scale", "attention.sliding_window"}});
  if (const auto value = keys.number(keys.prefix() + "logit_scale")) config["logit_scale"] = *value;
  if (const auto value = keys.integer(keys.prefix() + "attention.sliding_window"))
    config["sliding_window"] = *value;
  return config.dump(2);
}

}  // namespace

Family cohere2_family() {
  return {"cohere2", make_cohere2, cohere2_presets, {"cohere2", cohere2_of_gguf}};
}

}  // namespace sluice
