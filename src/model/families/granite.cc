// Granite 3: the decoder with a factor for embeddings, scores, what sublayers add, and logits.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_granite(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  return make_decoder(config, {.family = "granite",
                               .has_qkv_bias = has_bias,
                               .has_o_bias = has_bias,
                               .has_mlp_bias = config.boolean_or("mlp_bias", false),
                               .gguf_pairs_rows = true,
                               .attention_scale = read_factor(config, "attention_multiplier", 1),
                               .embed_scale = read_factor(config, "embedding_multiplier", 1),
                               .residual_scale = read_factor(config, "residual_multiplier", 1),
                               .logit_scale = 1 / read_factor(config, "logits_scaling", 1)});
}

constexpr DecoderKind kGranite{"GraniteForCausalLM", "granite", 0, 0};
constexpr DecoderSizes kGranite2b[] = {
    {"granite-3.3-2b", 40, 2048, 8192, 32, 8, 0, 49159, 131072, 1e7, 1e-5, true}};
constexpr DecoderSizes kGranite8b[] = {
    {"granite-3.3-8b", 40, 4096, 12800, 32, 8, 0, 49159, 131072, 1e7, 1e-5, true}};

std::vector<KnownModel> granite_presets() {
  nlohmann::ordered_json changes{{"attention_multiplier", 0.015625},
                                 {"embedding_multiplier", 12.0},
                                 {"residual_multiplier", 0.22},
                                 {"logits_scaling", 8.0}};
  std::vector<KnownModel> presets = decoder_presets(kGranite2b, kGranite, changes);
  changes["attention_multiplier"] = 0.0078125;
  changes["logits_scaling"] = 16.0;
  add_presets(presets, kGranite8b, kGranite, changes);
  return presets;
}

std::string granite_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys, {.architecture = "GraniteForCausalLM",
             .model_type = "granite",
             .also = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}});
  if (const auto value = keys.number(keys.prefix() + "attention.scale"))
    config["attention_multiplier"] = *value;
  if (const auto value = keys.number(keys.prefix() + "embedding_scale"))
    config["embedding_multiplier"] = *value;
  if (const auto value = keys.number(keys.prefix() + "residual_scale"))
    config["residual_multiplier"] = *value;
  if (const auto value = keys.number(keys.prefix() + "logit_scale"))
    config["logits_scaling"] = *value;
  config["attention_bias"] = keys.has_attention_bias();
  config["mlp_bias"] = keys.tensor("blk.0.ffn_up.bias") != nullptr;
  return config.dump(2);
}

}  // namespace

Family granite_family() {
  return {"granite",
          make_granite,
          granite_presets,
          {"granite", granite_of_gguf},
          {"granite4_vision_text", "granite_docling_text"}};
}

}  // namespace sluice
