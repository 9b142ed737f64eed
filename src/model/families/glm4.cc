// GLM-4 and Z1 of April 2025: GLM with norms around both parts of a layer.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/glm_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_glm4(const ModelConfig& config) {
  DecoderTraits traits = glm_traits(config, "glm4");
  traits.place = NormPlace::kAround;
  traits.names.attention_post_norm = {"post_self_attn_layernorm", "post_attention_norm"};
  traits.names.mlp_post_norm = {"post_mlp_layernorm", "post_ffw_norm"};
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kGlm4{"Glm4ForCausalLM", "glm4", 151329, 151329};
constexpr DecoderSizes kGlm4s[] = {
    {"glm-4-9b-0414", 40, 4096, 13696, 32, 2, 128, 151552, 32768, 1e4, 1e-5, false},
    {"glm-4-32b-0414", 61, 6144, 23040, 48, 2, 128, 151552, 32768, 1e4, 1e-5, false}};

std::vector<KnownModel> glm4_presets() {
  return decoder_presets(kGlm4s, kGlm4,
                         {{"partial_rotary_factor", 0.5}, {"attention_bias", false}});
}

std::string glm4_of_gguf(const GgufKeys& keys) {
  return glm_of_gguf(keys, "Glm4ForCausalLM", "glm4");
}

}  // namespace

Family glm4_family() {
  return {"glm4", make_glm4, glm4_presets, {"glm4", glm4_of_gguf}, {"glm4v_text", "glm_ocr_text"}};
}

}  // namespace sluice
