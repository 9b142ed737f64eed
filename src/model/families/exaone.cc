// EXAONE 3 and 3.5: Llama under other names.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_exaone(const ModelConfig& config) {
  DecoderTraits traits{.family = "exaone",
                       .kv_heads = 8,
                       .max_positions = 4096,
                       .eps = 1e-5,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false)};
  traits.has_qkv_bias = traits.has_o_bias = config.boolean_or("attention_bias", false);
  const auto key = [&](const char* name, const char* other) {
    return config.has(name) ? name : other;
  };
  traits.keys.layers = key("num_layers", "num_hidden_layers");
  traits.keys.eps = key("layer_norm_epsilon", "rms_norm_eps");
  traits.keys.activation = key("activation_function", "hidden_act");
  traits.ropes = {read_rope(config, read_head_dim(config), {.theta = 5e5})};
  DecoderNames& names = traits.names;
  names.prefixes = {"transformer.", ""};
  names.layers = "h";
  names.tokens.name = "wte";
  names.attention_norm.name = "ln_1";
  names.q.name = "attn.attention.q_proj";
  names.k.name = "attn.attention.k_proj";
  names.v.name = "attn.attention.v_proj";
  names.o.name = "attn.attention.out_proj";
  names.mlp_norm.name = "ln_2";
  names.gate.name = "mlp.c_fc_0";
  names.up.name = "mlp.c_fc_1";
  names.down.name = "mlp.c_proj";
  names.norm.name = "ln_f";
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family exaone_family() { return {"exaone", make_exaone, nullptr, {}}; }

}  // namespace sluice
