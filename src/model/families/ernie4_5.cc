// ERNIE 4.5, dense: the decoder that turns heads in pairs; biases of all its products or of none.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_ernie4_5(const ModelConfig& config) {
  constexpr int64_t kHeadDim = 128;
  const bool has_bias = config.boolean_or("use_bias", false);
  DecoderTraits traits{.family = "ernie4_5",
                       .head_dim = kHeadDim,
                       .kv_heads = 2,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .is_tied = true,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = has_bias,
                       .rope = RopeLayout::kPairs};
  if (config.text_or("model_type", "") == "paddleocr_vl_text") traits.rope = RopeLayout::kHalves;
  traits.ropes = {read_rope(config, read_head_dim(config, kHeadDim), {.theta = 5e5})};
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kErnie45{"Ernie4_5ForCausalLM", "ernie4_5", 1, 2};
constexpr DecoderSizes kErnie45s[] = {
    {"ernie-4.5-0.3b", 18, 1024, 3072, 16, 2, 128, 103424, 131072, 5e5, 1e-5, true}};

std::vector<KnownModel> ernie4_5_presets() {
  return decoder_presets(kErnie45s, kErnie45, {{"use_bias", false}});
}

std::string ernie4_5_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "Ernie4_5ForCausalLM", .model_type = "ernie4_5"});
  config["use_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

}  // namespace

Family ernie4_5_family() {
  return {"ernie4_5",
          make_ernie4_5,
          ernie4_5_presets,
          {"ernie4_5", ernie4_5_of_gguf},
          {"paddleocr_vl_text"}};
}

}  // namespace sluice
