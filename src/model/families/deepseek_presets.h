#pragma once
// What DeepSeek-V2's and -V3's published configs and GGUF files have in common, and what Kimi-K2
// has of them.
#include <nlohmann/json.hpp>

#include "src/model/families/decoder.h"
#include "src/model/families/gguf_mixture.h"

namespace sluice {

/// Adds latent attention's sizes, rotary positions stretched 40 times with `mscale` (YaRN), and
/// what is alike beside them to a config.json.
inline void add_deepseek_values(int64_t vocab_size, double mscale, nlohmann::ordered_json& json) {
  json.update(nlohmann::ordered_json{{"q_lora_rank", 1536},
                                     {"kv_lora_rank", 512},
                                     {"qk_nope_head_dim", 128},
                                     {"qk_rope_head_dim", 64},
                                     {"v_head_dim", 128},
                                     {"vocab_size", vocab_size},
                                     {"max_position_embeddings", 163840},
                                     {"rms_norm_eps", 1e-6},
                                     {"rope_theta", 10000.0},
                                     {"rope_scaling",
                                      {{"type", "yarn"},
                                       {"factor", 40},
                                       {"original_max_position_embeddings", 4096},
                                       {"beta_fast", 32},
                                       {"beta_slow", 1},
                                       {"mscale", mscale},
                                       {"mscale_all_dim", mscale}}},
                                     {"hidden_act", "silu"},
                                     {"tie_word_embeddings", false},
                                     {"torch_dtype", "bfloat16"}});
}

/// The layers of DeepSeek-V3 and of Kimi-K2. Errors: kFile.
std::unique_ptr<FamilyModel> make_deepseek_v3(const ModelConfig& config);

/// The config.json of a GGUF file of either, whose routers tell which it is. Errors: kFile.
std::string deepseek_of_gguf(const GgufKeys& keys);

}  // namespace sluice
