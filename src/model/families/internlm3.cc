// InternLM 3: Llama with biases of q, k and v, and of all other products, by keys of their own.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_internlm3(const ModelConfig& config) {
  DecoderTraits traits{
      .family = "internlm3", .head_dim = 128, .kv_heads = 2, .max_positions = 32768, .eps = 1e-5};
  traits.has_qkv_bias = config.boolean_or("qkv_bias", config.boolean_or("attention_bias", false));
  traits.has_o_bias = config.boolean_or("bias", config.boolean_or("attention_bias", false));
  traits.has_mlp_bias = config.boolean_or("bias", config.boolean_or("mlp_bias", false));
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family internlm3_family() { return {"internlm3", make_internlm3, nullptr, {}}; }

}  // namespace sluice
