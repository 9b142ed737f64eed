// Mistral: the gated decoder with a window in its first models and heads of their own width in
// later ones. Their GGUF files say that they are Llama's.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_mistral(const ModelConfig& config) {
  return make_decoder(config,
                      {.family = "mistral", .sliding_window = read_sliding_window(config, 4096)});
}

constexpr DecoderKind kMistral{"MistralForCausalLM", "mistral", 1, 2};

// 7b: v0.2, the first without a window.
constexpr DecoderSizes kMistrals[] = {
    {"mistral-7b", 32, 4096, 14336, 32, 8, 0, 32000, 32768, 1e6, 1e-5, false},
    {"mistral-nemo-12b", 40, 5120, 14336, 32, 8, 128, 131072, 131072, 1e6, 1e-5, false},
    {"mistral-small-24b", 40, 5120, 32768, 32, 8, 128, 131072, 32768, 1e8, 1e-5, false},
    {"mistral-large-123b", 88, 12288, 28672, 96, 8, 128, 32768, 131072, 1e6, 1e-5, false}};

std::vector<KnownModel> mistral_presets() {
  std::vector<KnownModel> presets;
  for (const DecoderSizes& sizes : kMistrals) {
    nlohmann::ordered_json json = decoder_config(sizes, kMistral);
    json["sliding_window"] = nullptr;
    presets.push_back({sizes.name, json.dump(2)});
  }
  return presets;
}

}  // namespace

Family mistral_family() { return {"mistral", make_mistral, mistral_presets, {}}; }

}  // namespace sluice
