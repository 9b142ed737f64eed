// GPT-NeoX and Pythia: attention and MLP side by side with a norm each, a quarter of each head
// turned, q, k and v of each head in turn.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gpt_neox(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", true);
  DecoderTraits traits{.family = "gpt_neox",
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .residual = config.boolean_or("use_parallel_residual", true)
                                       ? Residual::kParallelNorms
                                       : Residual::kSerial,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = true,
                       .fused = read_qkv_order(config),
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "gelu")};
  traits.keys.kv_heads = nullptr;
  traits.keys.eps = "layer_norm_eps";
  traits.ropes = {
      read_rope(config, read_head_dim(config),
                {.share = config.number_or("rotary_pct", 0.25), .theta_key = "rotary_emb_base"})};
  DecoderNames& names = traits.names;
  names.prefixes = {"gpt_neox.", ""};
  names.tokens.name = "embed_in";
  names.qkv.name = "attention.query_key_value";
  names.o.name = "attention.dense";
  names.up.name = "mlp.dense_h_to_4h";
  names.down.name = "mlp.dense_4h_to_h";
  names.norm.name = "final_layer_norm";
  names.head = {"embed_out", "lm_head"};  // the latter as transformers writes it
  return make_decoder(config, std::move(traits));
}

struct NeoxSizes {
  const char* name;
  int layers, hidden, heads, vocab;
};
constexpr NeoxSizes kNeoxes[] = {
    {"pythia-70m", 6, 512, 8, 50304},     {"pythia-160m", 12, 768, 12, 50304},
    {"pythia-410m", 24, 1024, 16, 50304}, {"pythia-1b", 16, 2048, 8, 50304},
    {"pythia-1.4b", 24, 2048, 16, 50304}, {"pythia-2.8b", 32, 2560, 32, 50304},
    {"pythia-6.9b", 32, 4096, 32, 50432}, {"pythia-12b", 36, 5120, 40, 50688},
    {"gpt-neox-20b", 44, 6144, 64, 50432}};

std::vector<KnownModel> gpt_neox_presets() {
  std::vector<KnownModel> presets;
  for (const NeoxSizes& sizes : kNeoxes)
    presets.push_back({sizes.name, nlohmann::ordered_json{{"architectures", {"GPTNeoXForCausalLM"}},
                                                          {"model_type", "gpt_neox"},
                                                          {"hidden_size", sizes.hidden},
                                                          {"intermediate_size", 4 * sizes.hidden},
                                                          {"num_hidden_layers", sizes.layers},
                                                          {"num_attention_heads", sizes.heads},
                                                          {"vocab_size", sizes.vocab},
                                                          {"max_position_embeddings", 2048},
                                                          {"rotary_pct", 0.25},
                                                          {"rotary_emb_base", 10000},
                                                          {"use_parallel_residual", true},
                                                          {"hidden_act", "gelu"},
                                                          {"layer_norm_eps", 1e-5},
                                                          {"tie_word_embeddings", false},
                                                          {"bos_token_id", 0},
                                                          {"eos_token_id", 0},
                                                          {"torch_dtype", "float16"}}
                                       .dump(2)});
  return presets;
}

std::string gpt_neox_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "GPTNeoXForCausalLM",
                                                     .model_type = "gpt_neox",
                                                     .eps = "layer_norm_eps",
                                                     .turns_a_part = true,
                                                     .also = {"use_parallel_residual"}});
  config["hidden_act"] = "gelu";
  config["use_parallel_residual"] =
      keys.boolean(keys.prefix() + "use_parallel_residual").value_or(true);
  config["rotary_pct"] = config.value("partial_rotary_factor", 1.0);
  config["is_qkv_in_order"] = true;  // files have q, k and v one below the other
  return config.dump(2);
}

}  // namespace

Family gpt_neox_family() {
  return {"gpt_neox", make_gpt_neox, gpt_neox_presets, {"gptneox", gpt_neox_of_gguf}};
}

}  // namespace sluice
