// GLM-4 of 2024 (9B): the decoder that turns half of each head in pairs.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/glm_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_glm(const ModelConfig& config) {
  return make_decoder(config, glm_traits(config, "glm"));
}

constexpr DecoderKind kGlm{"GlmForCausalLM", "glm", 151329, 151329};
constexpr DecoderSizes kGlms[] = {
    {"glm-4-9b-chat", 40, 4096, 13696, 32, 2, 128, 151552, 131072, 1e4, 1.5625e-7, false}};

std::vector<KnownModel> glm_presets() {
  return decoder_presets(kGlms, kGlm, {{"partial_rotary_factor", 0.5}, {"attention_bias", true}});
}

std::string chatglm_of_gguf(const GgufKeys& keys) {
  return glm_of_gguf(keys, "GlmForCausalLM", "glm");
}

}  // namespace

Family glm_family() { return {"glm", make_glm, glm_presets, {"chatglm", chatglm_of_gguf}}; }

}  // namespace sluice
