// Qwen3, the dense ones: the gated decoder with a norm of each head of q and k.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen3(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  return make_decoder(config, {.family = "qwen3",
                               .head_dim = 128,
                               .qk_norm = QkNorm::kEachHead,
                               .has_qkv_bias = has_bias,
                               .has_o_bias = has_bias,
                               .layers = read_optional_windows(config)});
}

// Files of models that see say how pairs are shared among the sides of a picture, and into how many
// layers it goes: text turns all pairs alike.
std::string qwen3_of_gguf(const GgufKeys& keys) {
  return gguf_decoder_config(keys, {.architecture = "Qwen3ForCausalLM",
                                    .model_type = "qwen3",
                                    .also = {"rope.dimension_sections", "n_deepstack_layers"},
                                    .has_yarn = true})
      .dump(2);
}

constexpr DecoderKind kQwen3{"Qwen3ForCausalLM", "qwen3", 151643, 151645};

constexpr DecoderSizes kQwen3s[] = {
    {"qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true},
    {"qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true},
    {"qwen3-4b", 36, 2560, 9728, 32, 8, 128, 151936, 40960, 1e6, 1e-6, true},
    {"qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, 1e-6, false},
    {"qwen3-14b", 40, 5120, 17408, 40, 8, 128, 151936, 40960, 1e6, 1e-6, false},
    {"qwen3-32b", 64, 5120, 25600, 64, 8, 128, 151936, 40960, 1e6, 1e-6, false}};

std::vector<KnownModel> qwen3_presets() { return decoder_presets(kQwen3s, kQwen3); }

}  // namespace

Family qwen3_family() {
  return {
      "qwen3", make_qwen3, qwen3_presets, {"qwen3", qwen3_of_gguf, {"qwen3vl"}}, {"qwen3_vl_text"}};
}

}  // namespace sluice
