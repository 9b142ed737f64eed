// Mamba-2 (arXiv:2405.21060; Codestral Mamba): a state space in every layer, and nothing else.
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"
#include "src/model/families/gguf_state_space.h"
#include "src/model/families/state_space_traits.h"

namespace sluice {

namespace {

constexpr StateSpaceKeys kMamba2Keys{"num_heads",   "head_dim", "n_groups", "state_size",
                                     "conv_kernel", "expand",   "use_bias", "use_conv_bias"};
constexpr int64_t kMostPositions = 1 << 20;  // there is no longest sequence: its state has one size

std::unique_ptr<FamilyModel> make_mamba2(const ModelConfig& config) {
  DecoderTraits traits{.family = "mamba2",
                       .heads = 128,
                       .vocab_size = 32768,
                       .head_dim = 64,
                       .max_positions = kMostPositions,
                       .eps = 1e-5,
                       .has_mlp = false};
  traits.keys = {.intermediate = nullptr,
                 .heads = "num_heads",
                 .kv_heads = nullptr,
                 .eps = "layer_norm_epsilon"};
  read_state_space(config, kMamba2Keys, {.heads = 128, .width = 64, .groups = 8, .state = 128},
                   traits);
  traits.intermediate_size = traits.recurrent.value_columns();
  const int64_t layers = config.integer("num_hidden_layers", 1, 4096);
  traits.layers.assign(static_cast<size_t>(layers),
                       {.window = 0, .rope = -1, .is_recurrent = true});
  DecoderNames& names = traits.names;
  names.prefixes = {"backbone.", "model.", ""};
  names.tokens = {"embeddings", "token_embd"};
  names.attention_norm = {"norm", "attn_norm"};
  names.norm = {"norm_f", "output_norm"};
  return make_decoder(config, std::move(traits));
}

std::vector<KnownModel> mamba2_presets() {
  const nlohmann::ordered_json config{{"architectures", {"Mamba2ForCausalLM"}},
                                      {"model_type", "mamba2"},
                                      {"bos_token_id", 0},
                                      {"eos_token_id", 0},
                                      {"vocab_size", 32768},
                                      {"hidden_size", 4096},
                                      {"num_hidden_layers", 64},
                                      {"num_heads", 128},
                                      {"head_dim", 64},
                                      {"n_groups", 8},
                                      {"state_size", 128},
                                      {"conv_kernel", 4},
                                      {"expand", 2},
                                      {"use_bias", false},
                                      {"use_conv_bias", true},
                                      {"layer_norm_epsilon", 1e-5},
                                      {"tie_word_embeddings", false},
                                      {"torch_dtype", "bfloat16"}};
  return {{"codestral-mamba-7b", config.dump(2)}};
}

// Files say nothing of the least and the most that a time step may be.
std::string mamba2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys, {.architecture = "Mamba2ForCausalLM",
             .model_type = "mamba2",
             .eps = "layer_norm_epsilon",
             .also = {std::begin(kGgufStateSpaceKeys), std::end(kGgufStateSpaceKeys)},
             .head_dim = 1,
             .has_attention = false});
  for (const char* of_attention :
       {"num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta"})
    config.erase(of_attention);
  add_gguf_state_space_keys(keys, kMamba2Keys, config);
  return config.dump(2);
}

}  // namespace

Family mamba2_family() {
  return {"mamba2", make_mamba2, mamba2_presets, {"mamba2", mamba2_of_gguf}};
}

}  // namespace sluice
