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

std::string olmo2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "Olmo2ForCausalLM", .model_type = "olmo2"});

  return config.dump(2);
}

}  // namespace

Family olmo2_family() { return {"olmo2", make_olmo2, olmo2_presets, {"olmo2", olmo2_of_gguf}}; }

}  // namespace sluice
