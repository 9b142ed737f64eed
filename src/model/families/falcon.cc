// Falcon 7B, 11B, 40B and 180B: attention and MLP side by side, q, k and v in groups of heads that
// share a KV head. Falcon RW: one behind the other, positions by ALiBi, which is rounded to bf16.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_falcon(const ModelConfig& config) {
  const bool has_alibi = config.boolean_or("alibi", false);
  const bool is_new = config.boolean_or("new_decoder_architecture", false);
  const bool is_parallel = is_new || config.boolean_or("parallel_attn", true);
  const bool has_bias = config.boolean_or("bias", false);
  const bool has_two = is_new && config.integer_or("num_ln_in_parallel_attn", 2, 1, 2) == 2;
  DecoderTraits traits{.family = "falcon",
                       .eps = 1e-5,
                       .is_tied = true,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .residual = !is_parallel ? Residual::kSerial
                                   : has_two    ? Residual::kParallelNorms
                                                : Residual::kParallel,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_mlp_bias = has_bias,
                       .fused = read_qkv_order(config),
                       .is_gated = false,
                       .activation = read_activation(config, "activation", "gelu"),
                       .has_alibi = has_alibi,
                       .rounds_slopes = has_alibi};
  const auto key = [&](const char* name, const char* older) {
    return config.has(name) ? name : older;
  };
  traits.keys = {.hidden = key("hidden_size", "n_embed"),
                 .intermediate = nullptr,
                 .layers = key("num_hidden_layers", "n_layer"),
                 .heads = key("num_attention_heads", "n_head"),
                 .kv_heads = nullptr,
                 .eps = "layer_norm_epsilon"};
  const int64_t heads = config.integer(traits.keys.heads, 1, 4096);
  traits.kv_heads = is_new ? config.integer_or("num_kv_heads", heads, 1, heads)
                    : config.boolean_or("multi_query", true) ? 1
                                                             : heads;
  traits.intermediate_size = config.integer_or(
      "ffn_hidden_size", 4 * config.integer(traits.keys.hidden, 1, 1 << 20), 1, 8 << 20);
  DecoderNames& names = traits.names;
  names.prefixes = {"transformer.", ""};
  names.layers = "h";
  names.tokens.name = "word_embeddings";
  if (has_two) {
    names.attention_norm = {"ln_attn", "attn_norm_2"};
    names.mlp_norm = {"ln_mlp", "attn_norm"};
  }
  names.qkv.name = "self_attention.query_key_value";
  names.o.name = "self_attention.dense";
  names.up.name = "mlp.dense_h_to_4h";
  names.down.name = "mlp.dense_4h_to_h";
  names.norm.name = "ln_f";
  return make_decoder(config, std::move(traits));
}

// One KV head: the old decoder.
struct FalconSizes {
  const char* name;
  int layers, hidden, heads, kv_heads;
};
constexpr FalconSizes kFalcons[] = {{"falcon-7b", 32, 4544, 71, 1},
                                    {"falcon-40b", 60, 8192, 128, 8},
                                    {"falcon-180b", 80, 14848, 232, 8}};

std::vector<KnownModel> falcon_presets() {
  std::vector<KnownModel> presets;
  for (const FalconSizes& sizes : kFalcons) {
    nlohmann::ordered_json json{{"architectures", {"FalconForCausalLM"}},
                                {"model_type", "falcon"},
                                {"hidden_size", sizes.hidden},
                                {"num_hidden_layers", sizes.layers},
                                {"num_attention_heads", sizes.heads},
                                {"num_kv_heads", sizes.kv_heads},
                                {"new_decoder_architecture", sizes.kv_heads > 1},
                                {"multi_query", true},
                                {"parallel_attn", true},
                                {"bias", false},
                                {"alibi", false},
                                {"vocab_size", 65024},
                                {"layer_norm_epsilon", 1e-5},
                                {"bos_token_id", 11},
                                {"eos_token_id", 11},
                                {"torch_dtype", "bfloat16"}};
    presets.push_back({sizes.name, json.dump(2)});
  }
  return presets;
}

std::string falcon_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys,
      {.architecture = "FalconForCausalLM", .model_type = "falcon", .eps = "layer_norm_epsilon"});
  const bool has_two = keys.tensor("blk.0.attn_norm_2.weight") != nullptr;
  config["num_kv_heads"] = config["num_key_value_heads"];
  config["new_decoder_architecture"] = has_two || config["num_kv_heads"] != 1;
  config["num_ln_in_parallel_attn"] = has_two ? 2 : 1;
  config["ffn_hidden_size"] = config["intermediate_size"];
  config["bias"] = keys.tensor("blk.0.attn_qkv.bias") != nullptr;
  config["is_qkv_in_order"] = true;  // files have q, k and v one below the other
  return config.dump(2);
}

}  // namespace

Family falcon_family() {
  return {"falcon", make_falcon, falcon_presets, {"falcon", falcon_of_gguf}};
}

}  // namespace sluice
