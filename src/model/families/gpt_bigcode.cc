// GPT-BigCode: StarCoder and SantaCoder. GPT-2 whose matrices are not turned and whose heads share
// one key and value.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gpt_bigcode(const ModelConfig& config) {
  if (config.boolean_or("add_cross_attention", false))
    config.refuse("it attends to an encoder", "sluice runs decoders");
  const bool shares = config.boolean_or("multi_query", true);
  DecoderTraits traits{
      .family = "gpt_bigcode",
      .kv_heads = shares ? 1 : 0,
      .max_positions = 1024,
      .eps = 1e-5,
      .is_tied = true,
      .norm = NormKind::kLayer,
      .has_norm_bias = true,
      .has_qkv_bias = true,
      .has_o_bias = true,
      .has_mlp_bias = true,
      .fused = shares ? Fused::kWhole : Fused::kGroups,
      .is_gated = false,
      .activation = read_activation(config, "activation_function", "gelu_pytorch_tanh"),
      .has_positions = true};
  if (!config.boolean_or("scale_attn_weights", true)) traits.attention_scale = 1;
  traits.keys = {.hidden = "n_embd",
                 .intermediate = "n_inner",
                 .layers = "n_layer",
                 .heads = "n_head",
                 .kv_heads = nullptr,
                 .positions = "n_positions",
                 .eps = "layer_norm_epsilon"};
  traits.intermediate_size = 4 * config.integer("n_embd", 1, 1 << 20);
  name_as_gpt2(traits.names);
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family gpt_bigcode_family() { return {"gpt_bigcode", make_gpt_bigcode, nullptr, {}}; }

}  // namespace sluice
