// Qwen2 and Qwen2.5: the gated decoder with biases of q, k and v. Windows are off in the models
// that were released. Files of models that see say how the pairs of a head are shared among the
// sides of a picture: text turns all of them alike.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen2(const ModelConfig& config) {
  return make_decoder(
      config, {.family = "qwen2", .has_qkv_bias = true, .layers = read_optional_windows(config)});
}

std::string qwen2_of_gguf(const GgufKeys& keys) {
  return gguf_decoder_config(keys, {.architecture = "Qwen2ForCausalLM",
                                    .model_type = "qwen2",
                                    .also = {"rope.dimension_sections"},
                                    .has_yarn = true})
      .dump(2);
}

constexpr DecoderKind kQwen2{"Qwen2ForCausalLM", "qwen2", 151643, 151643};

constexpr DecoderSizes kQwen2s[] = {
    {"qwen2-0.5b", 24, 896, 4864, 14, 2, 0, 151936, 131072, 1e6, 1e-6, true},
    {"qwen2-1.5b", 28, 1536, 8960, 12, 2, 0, 151936, 131072, 1e6, 1e-6, true},
    {"qwen2-7b", 28, 3584, 18944, 28, 4, 0, 152064, 131072, 1e6, 1e-6, false},
    {"qwen2-72b", 80, 8192, 29568, 64, 8, 0, 152064, 131072, 1e6, 1e-5, false},
    {"qwen2.5-0.5b", 24, 896, 4864, 14, 2, 0, 151936, 32768, 1e6, 1e-6, true},
    {"qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 0, 151936, 131072, 1e6, 1e-6, true},
    {"qwen2.5-3b", 36, 2048, 11008, 16, 2, 0, 151936, 32768, 1e6, 1e-6, true},
    {"qwen2.5-7b", 28, 3584, 18944, 28, 4, 0, 152064, 131072, 1e6, 1e-6, false},
    {"qwen2.5-14b", 48, 5120, 13824, 40, 8, 0, 152064, 131072, 1e6, 1e-5, false},
    {"qwen2.5-32b", 64, 5120, 27648, 40, 8, 0, 152064, 131072, 1e6, 1e-5, false},
    {"qwen2.5-72b", 80, 8192, 29568, 64, 8, 0, 152064, 131072, 1e6, 1e-5, false}};

std::vector<KnownModel> qwen2_presets() { return decoder_presets(kQwen2s, kQwen2); }

}  // namespace

Family qwen2_family() {
  return {"qwen2",
          make_qwen2,
          qwen2_presets,
          {"qwen2", qwen2_of_gguf, {"qwen2vl"}},
          {"qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"}};
}

}  // namespace sluice
