// Seed-OSS: the decoder with biases of q, k and v.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_seed_oss(const ModelConfig& config) {
  DecoderTraits traits{.family = "seed_oss",
                       .head_dim = 128,
                       .kv_heads = 8,
                       .max_positions = 524288,
                       .has_qkv_bias = config.boolean_or("attention_bias", true),
                       .has_o_bias = config.boolean_or("attention_out_bias", false),
                       .has_mlp_bias = config.boolean_or("mlp_bias", false)};
  traits.names.mlp_norm.gguf = "post_attention_norm";
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kSeedOss{"SeedOssForCausalLM", "seed_oss", 0, 2};
constexpr DecoderSizes kSeedOsses[] = {
    {"seed-oss-36b", 64, 5120, 27648, 80, 8, 128, 155136, 524288, 1e7, 1e-6, false}};

std::vector<KnownModel> seed_oss_presets() {
  return decoder_presets(kSeedOsses, kSeedOss,
                         {{"attention_bias", true}, {"attention_out_bias", false}});
}

std::string seed_oss_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "SeedOssForCausalLM", .model_type = "seed_oss"});
  config["attention_bias"] = keys.has_attention_bias();
  config["attention_out_bias"] = keys.tensor("blk.0.attn_output.bias") != nullptr;
  config["mlp_bias"] = keys.tensor("blk.0.ffn_up.bias") != nullptr;
  return config.dump(2);
}

}  // namespace

Family seed_oss_family() {
  return {"seed_oss", make_seed_oss, seed_oss_presets, {"seed_oss", seed_oss_of_gguf}};
}

}  // namespace sluice
