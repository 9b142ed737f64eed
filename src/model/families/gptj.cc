// GPT-J: attention and MLP of the same normed input, a part of each head turned in pairs, a bias of
// the logits.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gptj(const ModelConfig& config) {
  DecoderTraits traits{.family = "gptj",
                       .eps = 1e-5,
                       .norm = NormKind::kLayer,
                       .has_norm_bias = true,
                       .residual = Residual::kParallel,
                       .has_mlp_bias = true,
                       .has_head_bias = true,
                       .is_gated = false,
                       .activation = read_activation(config, "activation_function", "gelu_new"),
                       .rope = RopeLayout::kPairs};
  traits.keys = {.hidden = "n_embd",
                 .intermediate = "n_inner",
                 .layers = "n_layer",
                 .heads = "n_head",
                 .kv_heads = nullptr,
                 .positions = "n_positions",
                 .eps = "layer_norm_epsilon"};
  const int64_t hidden = config.integer("n_embd", 1, 1 << 20);
  const int64_t head_dim = hidden / config.integer("n_head", 1, 4096);
  traits.intermediate_size = 4 * hidden;
  const int64_t turned =
      config.is_null("rotary_dim") ? head_dim : config.integer_or("rotary_dim", 64, 1, 1 << 20);
  if (turned > head_dim)
    config.refuse("\"rotary_dim\" is wider than a head", "mend the config.json");
  traits.ropes = {read_rope(config, turned)};
  DecoderNames& names = traits.names;
  names.prefixes = {"transformer.", ""};
  names.layers = "h";
  names.tokens.name = "wte";
  names.attention_norm.name = "ln_1";
  names.q.name = "attn.q_proj";
  names.k.name = "attn.k_proj";
  names.v.name = "attn.v_proj";
  names.o.name = "attn.out_proj";
  names.up.name = "mlp.fc_in";
  names.down.name = "mlp.fc_out";
  names.norm.name = "ln_f";
  return make_decoder(config, std::move(traits));
}

std::vector<KnownModel> gptj_presets() {
  return {{"gpt-j-6b", nlohmann::ordered_json{{"architectures", {"GPTJForCausalLM"}},
                                              {"model_type", "gptj"},
                                              {"n_embd", 4096},
                                              {"n_layer", 28},
                                              {"n_head", 16},
                                              {"n_positions", 2048},
                                              {"rotary_dim", 64},
                                              {"vocab_size", 50400},
                                              {"activation_function", "gelu_new"},
                                              {"layer_norm_epsilon", 1e-5},
                                              {"tie_word_embeddings", false},
                                              {"bos_token_id", 50256},
                                              {"eos_token_id", 50256},
                                              {"torch_dtype", "float16"}}
                           .dump(2)}};
}

std::string gptj_of_gguf(const GgufKeys& keys) {
  nlohmann::json found = gguf_decoder_config(keys, {.architecture = "GPTJForCausalLM",
                                                    .model_type = "gptj",
                                                    .eps = "layer_norm_epsilon",
                                                    .turns_a_part = true,
                                                    .also = {"use_parallel_residual"}});
  if (!keys.boolean(keys.prefix() + "use_parallel_residual").value_or(true))
    keys.refuse("attention and MLP are not side by side", "such models are not read");
  if (found["num_key_value_heads"] != found["num_attention_heads"])
    keys.refuse("it has fewer heads of keys and values", "such models are not read");
  const int64_t head_dim =
      found["hidden_size"].get<int64_t>() / found["num_attention_heads"].get<int64_t>();
  found["rotary_dim"] = keys.integer(keys.prefix() + "rope.dimension_count").value_or(head_dim);
  found["activation_function"] = "gelu_new";
  for (const auto& [ours, theirs] : {std::pair{"hidden_size", "n_embd"},
                                     {"intermediate_size", "n_inner"},
                                     {"num_hidden_layers", "n_layer"},
                                     {"num_attention_heads", "n_head"},
                                     {"max_position_embeddings", "n_positions"}})
    found[theirs] = found[ours];
  for (const char* ours : {"hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads", "max_position_embeddings", "num_key_value_heads",
                           "head_dim", "partial_rotary_factor", "hidden_act"})
    found.erase(ours);
  return found.dump(2);
}

}  // namespace

Family gptj_family() { return {"gptj", make_gptj, gptj_presets, {"gptj", gptj_of_gguf}}; }

}  // namespace sluice
