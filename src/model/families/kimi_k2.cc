// Kimi-K2: DeepSeek-V3's layers with half the heads, half as many experts again, and no groups.
#include <nlohmann/json.hpp>

#include "src/model/families/deepseek_presets.h"

namespace sluice {

namespace {

std::vector<KnownModel> kimi_k2_presets() {
  nlohmann::ordered_json json{{"architectures", {"DeepseekV3ForCausalLM"}},
                              {"model_type", "kimi_k2"},
                              {"hidden_size", 7168},
                              {"intermediate_size", 18432},
                              {"moe_intermediate_size", 2048},
                              {"num_hidden_layers", 61},
                              {"num_attention_heads", 64},
                              {"num_key_value_heads", 64},
                              {"n_routed_experts", 384},
                              {"n_shared_experts", 1},
                              {"num_experts_per_tok", 8},
                              {"n_group", 1},
                              {"topk_group", 1},
                              {"norm_topk_prob", true},
                              {"routed_scaling_factor", 2.827},
                              {"first_k_dense_replace", 1},
                              {"bos_token_id", 163584},
                              {"eos_token_id", 163585}};
  add_deepseek_values(163840, 1.0, json);
  json["max_position_embeddings"] = 131072;
  json["rope_theta"] = 50000.0;
  json["rope_scaling"]["factor"] = 32;
  json["rope_scaling"]["beta_fast"] = 1;
  return {{"kimi-k2", json.dump(2)}};
}

}  // namespace

Family kimi_k2_family() { return {"kimi_k2", make_deepseek_v3, kimi_k2_presets, {}}; }

}  // namespace sluice
