// DeepSeek-V3 and R1, and Kimi-K2, which has their layers: latent attention, whose rotary positions
// turn pairs unless config.json says otherwise, and behind the first layers mixtures of experts
// with corrected routers.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/model/families/deepseek_presets.h"
#include "src/model/families/latent_traits.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

std::unique_ptr<FamilyModel> make_deepseek_v3(const ModelConfig& config) {
  const bool has_pairs = config.boolean_or("rope_interleave", true);
  DecoderTraits traits{.family = "deepseek_v3",
                       .max_positions = 4096,
                       .rope = has_pairs ? RopeLayout::kPairs : RopeLayout::kHalves};
  read_latent_attention(config, {}, traits);
  traits.mixture_layers = read_dense_beginning(config, 3);
  if (has_mixtures(traits)) {
    Mixture mixture = read_mixture(config, {.experts = "n_routed_experts"}, 256, 8, 2048);
    read_corrected_router(config, 2.5, mixture);
    read_groups(config, 8, 4, mixture.router);
    read_shared_experts(config, 1, mixture);
    traits.mixture = mixture;
  }
  return make_decoder(config, std::move(traits));
}

namespace {
// Of a head, wherever the file has it: newer ones have the latent rows' widths as the usual keys.
int64_t head_width(const GgufKeys& keys, const char* newer, const char* older) {
  const std::string p = keys.prefix();
  return keys.integer(p + newer).value_or(keys.integer(p + older).value_or(0));
}

// Files do not say which experts may be chosen together if they are old; then it is as in the
// released models of so many experts.
void add_released_groups(const GgufKeys& keys, bool is_v3, nlohmann::json& config) {
  if (keys.has(keys.prefix() + "expert_group_count")) return;
  const int64_t experts = config["n_routed_experts"];
  if (experts != (is_v3 ? 256 : 160)) return;
  config["n_group"] = 8;
  config["topk_group"] = is_v3 ? 4 : 3;
}

void add_latent_keys(const GgufKeys& keys, int64_t key_width, nlohmann::json& config) {
  const std::string p = keys.prefix();
  const int64_t turned = keys.need_integer(p + "rope.dimension_count");
  if (turned < 2 || turned >= key_width)
    keys.refuse("its heads' turned ends are not narrower than the heads",
                "download the file again");
  config["kv_lora_rank"] = keys.need_integer(p + "attention.kv_lora_rank");
  const auto rank = keys.integer(p + "attention.q_lora_rank");
  config["q_lora_rank"] = rank && *rank > 0 ? nlohmann::json(*rank) : nlohmann::json();
  config["qk_rope_head_dim"] = turned;
  config["qk_nope_head_dim"] = key_width - turned;
  config["v_head_dim"] = head_width(keys, "attention.value_length_mla", "attention.value_length");
  config.erase("head_dim");
  config["num_key_value_heads"] = config["num_attention_heads"];
  config.erase("partial_rotary_factor");
  // Only these say where keys' rows end.
  for (int64_t layer = 0; layer < config["num_hidden_layers"].get<int64_t>(); ++layer)
    if (const io::TensorEntry* part = keys.tensor(fmt::format("blk.{}.attn_k_b.weight", layer));
        part && !keys.tensor(fmt::format("blk.{}.attn_kv_b.weight", layer)) &&
        (part->shape.size() != 3 || part->shape[2] != key_width - turned))
      keys.refuse(fmt::format("{} has shape {}, but heads have {} columns that are not turned",
                              part->name, io::format_shape(part->shape), key_width - turned),
                  "download the file again");
  // Files have one factor for scores, a tenth of "mscale_all_dim"; released models' "mscale" is it.
  if (!config.contains("rope_scaling") || config["rope_scaling"]["rope_type"] != "yarn") return;
  const double scale = 10 * keys.number(p + "rope.scaling.yarn_log_multiplier").value_or(0);
  if (scale == 0) return;
  config["rope_scaling"]["mscale"] = scale;
  config["rope_scaling"]["mscale_all_dim"] = scale;
}

std::vector<KnownModel> deepseek_v3_presets() {
  nlohmann::ordered_json json{{"architectures", {"DeepseekV3ForCausalLM"}},
                              {"model_type", "deepseek_v3"},
                              {"hidden_size", 7168},
                              {"intermediate_size", 18432},
                              {"moe_intermediate_size", 2048},
                              {"num_hidden_layers", 61},
                              {"num_attention_heads", 128},
                              {"num_key_value_heads", 128},
                              {"n_routed_experts", 256},
                              {"n_shared_experts", 1},
                              {"num_experts_per_tok", 8},
                              {"n_group", 8},
                              {"topk_group", 4},
                              {"norm_topk_prob", true},
                              {"routed_scaling_factor", 2.5},
                              {"first_k_dense_replace", 3},
                              {"bos_token_id", 0},
                              {"eos_token_id", 1}};
  add_deepseek_values(129280, 1.0, json);
  return {{"deepseek-v3", json.dump(2)}};
}

}  // namespace

// Only routers with sigmoids have a vector that corrects them.
static bool has_sigmoids(const GgufKeys& keys) {
  const int64_t gating = keys.integer(keys.prefix() + "expert_gating_func").value_or(0);
  if (gating != 0) return gating == static_cast<int64_t>(GgufGating::kSigmoid);
  const int64_t layers = keys.need_integer(keys.prefix() + "block_count");
  for (int64_t layer = 0; layer < std::min<int64_t>(layers, 4096); ++layer)
    if (keys.tensor(fmt::format("blk.{}.exp_probs_b.bias", layer))) return true;
  return false;
}

// A file without experts is Youtu's.
static std::string dense_of_gguf(const GgufKeys& keys, GgufDecoderKind kind) {
  kind.architecture = "YoutuForCausalLM";
  kind.model_type = "youtu";
  kind.also.insert(kind.also.end(), {"expert_feed_forward_length", "leading_dense_block_count"});
  nlohmann::json config = gguf_decoder_config(keys, kind);
  const int64_t layers = config["num_hidden_layers"];
  if (keys.integer(keys.prefix() + "leading_dense_block_count").value_or(layers) < layers)
    keys.refuse(
        fmt::format("layers are a mixture, but there is no key {}expert_count", keys.prefix()),
        "download the file again");
  add_latent_keys(keys, kind.head_dim, config);
  return config.dump(2);
}

std::string deepseek_of_gguf(const GgufKeys& keys) {
  const std::string p = keys.prefix();
  const bool is_v3 = has_sigmoids(keys);
  const int64_t key_width = head_width(keys, "attention.key_length_mla", "attention.key_length");
  if (key_width < 1) keys.refuse("no key says how wide its heads are", "download the file again");
  GgufDecoderKind kind{
      .architecture = is_v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM",
      .model_type = is_v3 ? "deepseek_v3" : "deepseek_v2",
      .turns_a_part = true,
      .also = {"attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length_mla",
               "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"},
      .has_yarn = true,
      .head_dim = key_width};
  if (keys.integer(p + "expert_count").value_or(0) == 0) return dense_of_gguf(keys, kind);
  nlohmann::json config =
      gguf_mixture_config(keys, kind,
                          {.experts = "n_routed_experts",
                           .scale = "routed_scaling_factor",
                           .beginning = "first_k_dense_replace",
                           .has_groups = true,
                           .has_shared = true,
                           .gating = is_v3 ? GgufGating::kSigmoid : GgufGating::kSoftmax});
  add_released_groups(keys, is_v3, config);
  const bool has_groups = config["n_group"].get<int64_t>() > 1;
  if (!is_v3) config["topk_method"] = has_groups ? "group_limited_greedy" : "greedy";
  add_latent_keys(keys, key_width, config);
  return config.dump(2);
}

Family deepseek_v3_family() { return {"deepseek_v3", make_deepseek_v3, deepseek_v3_presets, {}}; }

}  // namespace sluice
