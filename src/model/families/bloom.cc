// BLOOM: ALiBi in place of positions, a norm behind the embeddings, q, k and v of each head in
// turn.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_bloom(const ModelConfig& config) {
  DecoderTraits traits{.family = "bloom",
                       .eps = 1e-5,
                       .is_tied = true,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .has_qkv_bias = true,
                       .has_o_bias = true,
                       .has_mlp_bias = true,
                       .fused = read_qkv_order(config),
                       .is_gated = false,
                       .activation = Activation::kGeluTanh,
                       .has_alibi = true};
  traits.adds_to_normed = config.boolean_or("apply_residual_connection_post_layernorm", false);
  const auto key = [&](const char* name, const char* other) {
    return config.has(name) ? name : other;
  };
  traits.keys = {.hidden = key("hidden_size", "n_embed"),
                 .intermediate = nullptr,
                 .layers = key("n_layer", "num_hidden_layers"),
                 .heads = key("n_head", "num_attention_heads"),
                 .kv_heads = nullptr,
                 .positions = "seq_length",
                 .eps = "layer_norm_epsilon"};
  traits.intermediate_size = 4 * config.integer(traits.keys.hidden, 1, 1 << 20);
  DecoderNames& names = traits.names;
  names.prefixes = {"transformer.", ""};
  names.layers = "h";
  names.tokens.name = "word_embeddings";
  names.embed_norm.name = "word_embeddings_layernorm";
  names.qkv.name = "self_attention.query_key_value";
  names.o.name = "self_attention.dense";
  names.up.name = "mlp.dense_h_to_4h";
  names.down.name = "mlp.dense_4h_to_h";
  names.norm.name = "ln_f";
  return make_decoder(config, std::move(traits));
}

struct BloomSizes {
  const char* name;
  int layers, hidden, heads;
};
constexpr BloomSizes kBlooms[] = {{"bloom-560m", 24, 1024, 16},
                                  {"bloom-1b7", 24, 2048, 16},
                                  {"bloom-3b", 30, 2560, 32},
                                  {"bloom-7b1", 30, 4096, 32},
                                  {"bloom-176b", 70, 14336, 112}};

std::vector<KnownModel> bloom_presets() {
  std::vector<KnownModel> presets;
  for (const BloomSizes& sizes : kBlooms)
    presets.push_back({sizes.name, nlohmann::ordered_json{{"architectures", {"BloomForCausalLM"}},
                                                          {"model_type", "bloom"},
                                                          {"hidden_size", sizes.hidden},
                                                          {"n_layer", sizes.layers},
                                                          {"n_head", sizes.heads},
                                                          {"vocab_size", 250880},
                                                          {"seq_length", 2048},
                                                          {"layer_norm_epsilon", 1e-5},
                                                          {"bos_token_id", 1},
                                                          {"eos_token_id", 2},
                                                          {"torch_dtype", "bfloat16"}}
                                       .dump(2)});
  return presets;
}

std::string bloom_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys,
      {.architecture = "BloomForCausalLM", .model_type = "bloom", .eps = "layer_norm_epsilon"});
  config["n_layer"] = config["num_hidden_layers"];
  config["n_head"] = config["num_attention_heads"];
  config["seq_length"] = config["max_position_embeddings"];
  config["is_qkv_in_order"] = true;  // files have q, k and v one below the other
  return config.dump(2);
}

}  // namespace

Family bloom_family() { return {"bloom", make_bloom, bloom_presets, {"bloom", bloom_of_gguf}}; }

}  // namespace sluice
