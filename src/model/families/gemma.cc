// Gemma 1: the decoder with gains stored less one, embeddings scaled by the root of their width and
// a gelu in its MLP. "gelu" in its config.json means the approximation.
#include <cmath>

#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gemma(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  const bool is_named_gelu = config.text_or("hidden_act", "") == "gelu";
  return make_decoder(
      config,
      {.family = "gemma",
       .head_dim = 256,
       .is_tied = true,
       .norm_added = 1,
       .has_qkv_bias = has_bias,
       .has_o_bias = has_bias,
       .activation = is_named_gelu ? Activation::kGeluTanh
                                   : read_activation(config, "hidden_act", "gelu_pytorch_tanh"),
       .embed_scale = static_cast<float>(std::sqrt(config.number("hidden_size")))});
}

constexpr DecoderKind kGemma{"GemmaForCausalLM", "gemma", 2, 1};
constexpr DecoderSizes kGemmas[] = {
    {"gemma-2b", 18, 2048, 16384, 8, 1, 256, 256000, 8192, 1e4, 1e-6, true},
    {"gemma-7b", 28, 3072, 24576, 16, 16, 256, 256000, 8192, 1e4, 1e-6, true}};

std::vector<KnownModel> gemma_presets() {
  return decoder_presets(kGemmas, kGemma, {{"hidden_act", "gelu_pytorch_tanh"}});
}

std::string gemma_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = "GemmaForCausalLM", .model_type = "gemma"});
  config["hidden_act"] = "gelu_pytorch_tanh";
  return config.dump(2);
}

}  // namespace

Family gemma_family() { return {"gemma", make_gemma, gemma_presets, {"gemma", gemma_of_gguf}}; }

}  // namespace sluice
