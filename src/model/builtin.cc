#include "src/model/builtin.h"

#include <nlohmann/json.hpp>

namespace sluice {

namespace {
// OPT: arXiv:2205.01068 table 1; 350m is the post-norm one with narrow embeddings.
struct OptRow {
  const char* name;
  int layers, hidden, heads, embed;
};
constexpr OptRow kOpt[] = {{"opt-125m", 12, 768, 12, 768},    {"opt-350m", 24, 1024, 16, 512},
                           {"opt-1.3b", 24, 2048, 32, 2048},  {"opt-2.7b", 32, 2560, 32, 2560},
                           {"opt-6.7b", 32, 4096, 32, 4096},  {"opt-13b", 40, 5120, 40, 5120},
                           {"opt-30b", 48, 7168, 56, 7168},   {"opt-66b", 64, 9216, 72, 9216},
                           {"opt-175b", 96, 12288, 96, 12288}};

// Llama: the models' published config.json files.
struct LlamaRow {
  const char* name;
  int layers, hidden, intermediate, heads, kv_heads, vocab, positions;
  double theta, eps, llama3_factor;
  bool tied;
};
constexpr LlamaRow kLlama[] = {
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 32000, 2048, 1e4, 1e-5, 0, false},
    {"llama-7b", 32, 4096, 11008, 32, 32, 32000, 2048, 1e4, 1e-6, 0, false},
    {"llama-13b", 40, 5120, 13824, 40, 40, 32000, 2048, 1e4, 1e-6, 0, false},
    {"llama-33b", 60, 6656, 17920, 52, 52, 32000, 2048, 1e4, 1e-6, 0, false},
    {"llama-65b", 80, 8192, 22016, 64, 64, 32000, 2048, 1e4, 1e-6, 0, false},
    {"llama-2-7b", 32, 4096, 11008, 32, 32, 32000, 4096, 1e4, 1e-5, 0, false},
    {"llama-2-13b", 40, 5120, 13824, 40, 40, 32000, 4096, 1e4, 1e-5, 0, false},
    {"llama-2-70b", 80, 8192, 28672, 64, 8, 32000, 4096, 1e4, 1e-5, 0, false},
    {"llama-3-8b", 32, 4096, 14336, 32, 8, 128256, 8192, 5e5, 1e-5, 0, false},
    {"llama-3-70b", 80, 8192, 28672, 64, 8, 128256, 8192, 5e5, 1e-5, 0, false},
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128256, 131072, 5e5, 1e-5, 8, false},
    {"llama-3.1-70b", 80, 8192, 28672, 64, 8, 128256, 131072, 5e5, 1e-5, 8, false},
    {"llama-3.1-405b", 126, 16384, 53248, 128, 8, 128256, 131072, 5e5, 1e-5, 8, false},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 128256, 131072, 5e5, 1e-5, 32, true},
    {"llama-3.2-3b", 28, 3072, 8192, 24, 8, 128256, 131072, 5e5, 1e-5, 32, true}};

std::string opt_config(const OptRow& row) {
  const bool is_350m = row.embed != row.hidden;
  return nlohmann::ordered_json{{"architectures", {"OPTForCausalLM"}},
                                {"model_type", "opt"},
                                {"hidden_size", row.hidden},
                                {"ffn_dim", 4 * row.hidden},
                                {"num_hidden_layers", row.layers},
                                {"num_attention_heads", row.heads},
                                {"word_embed_proj_dim", row.embed},
                                {"do_layer_norm_before", !is_350m},
                                {"vocab_size", 50272},
                                {"max_position_embeddings", 2048},
                                {"activation_function", "relu"},
                                {"bos_token_id", 2},
                                {"eos_token_id", 2},
                                {"pad_token_id", 1},
                                {"torch_dtype", "float16"}}
      .dump(2);
}

std::string llama_config(const LlamaRow& row) {
  nlohmann::ordered_json json{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"hidden_size", row.hidden},
                              {"intermediate_size", row.intermediate},
                              {"num_hidden_layers", row.layers},
                              {"num_attention_heads", row.heads},
                              {"num_key_value_heads", row.kv_heads},
                              {"vocab_size", row.vocab},
                              {"max_position_embeddings", row.positions},
                              {"rms_norm_eps", row.eps},
                              {"rope_theta", row.theta},
                              {"hidden_act", "silu"},
                              {"tie_word_embeddings", row.tied},
                              {"bos_token_id", row.vocab == 32000 ? 1 : 128000},
                              {"eos_token_id", row.vocab == 32000 ? 2 : 128001},
                              {"torch_dtype", "bfloat16"}};
  if (row.llama3_factor > 0)
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", row.llama3_factor},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  return json.dump(2);
}
}  // namespace

std::vector<std::string> builtin_model_names() {
  std::vector<std::string> names;
  for (const OptRow& row : kOpt) names.emplace_back(row.name);
  for (const LlamaRow& row : kLlama) names.emplace_back(row.name);
  return names;
}

std::optional<std::string> builtin_config(std::string_view name) {
  for (const OptRow& row : kOpt)
    if (name == row.name) return opt_config(row);
  for (const LlamaRow& row : kLlama)
    if (name == row.name) return llama_config(row);
  return std::nullopt;
}

}  // namespace sluice
