// MiniCPM3: a dense model with DeepSeek's latent attention and MiniCPM's scales of embeddings,
// branches and logits (arXiv:2404.06395).
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"
#include "src/model/families/latent_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_minicpm3(const ModelConfig& config) {
  const auto hidden = static_cast<double>(config.integer("hidden_size", 1, 1 << 20));
  const int64_t heads = config.integer_or("num_attention_heads", 40, 1, 4096);
  const double root = std::sqrt(static_cast<double>(config.integer("num_hidden_layers", 1, 4096)));
  // Null: nothing is scaled.
  const auto factor = [&](const char* key, double fallback, double none) {
    return config.is_null(key) ? none : static_cast<double>(read_factor(config, key, fallback));
  };
  DecoderTraits traits{
      .family = "minicpm3",
      .heads = 40,
      .vocab_size = 73448,
      .max_positions = 32768,
      .eps = 1e-5,
      .is_tied = true,
      .embed_scale = read_factor(config, "scale_emb", 12),
      .residual_scale = static_cast<float>(factor("scale_depth", 1.4, root) / root),
      .logit_scale = static_cast<float>(factor("dim_model_base", 256, hidden) / hidden)};
  read_latent_attention(config,
                        {.query_rank = 768,
                         .rank = 256,
                         .key_width = 64,
                         .turned_width = 32,
                         .value_width = std::max<int64_t>(static_cast<int64_t>(hidden) / heads, 1)},
                        traits);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kMinicpm3{"MiniCPM3ForCausalLM", "minicpm3", 1, 2};
constexpr DecoderSizes kMinicpm3s[] = {
    {"minicpm3-4b", 62, 2560, 6400, 40, 40, 0, 73448, 32768, 1e4, 1e-5, true}};

std::vector<KnownModel> minicpm3_presets() {
  return decoder_presets(kMinicpm3s, kMinicpm3,
                         {{"kv_lora_rank", 256},
                          {"q_lora_rank", 768},
                          {"qk_nope_head_dim", 64},
                          {"qk_rope_head_dim", 32},
                          {"v_head_dim", 64},
                          {"scale_emb", 12},
                          {"scale_depth", 1.4},
                          {"dim_model_base", 256}});
}

// Files do not say the three scales: they are the released model's.
std::string minicpm3_of_gguf(const GgufKeys& keys) {
  constexpr const char* kQueryRank = "attention.q_lora_rank";
  constexpr const char* kRank = "attention.kv_lora_rank";
  const int64_t key_width = keys.need_size("attention.key_length");
  const int64_t turned = keys.need_size("rope.dimension_count");
  if (turned >= key_width)
    keys.refuse("its heads' turned ends are not narrower than the heads",
                "download the file again");
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "MiniCPM3ForCausalLM",
                                                     .model_type = "minicpm3",
                                                     .turns_a_part = true,
                                                     .also = {kQueryRank, kRank},
                                                     .has_longrope = true,
                                                     .head_dim = key_width});
  const auto rank = keys.integer(keys.prefix() + kQueryRank);
  config["q_lora_rank"] = rank && *rank > 0 ? nlohmann::json(*rank) : nlohmann::json();
  config["kv_lora_rank"] = keys.need_size(kRank);
  config["qk_nope_head_dim"] = key_width - turned;
  config["qk_rope_head_dim"] = turned;
  if (const auto width = keys.integer(keys.prefix() + "attention.value_length"))
    config["v_head_dim"] = *width;
  config["scale_emb"] = 12;
  config["scale_depth"] = 1.4;
  config["dim_model_base"] = 256;
  config["num_key_value_heads"] = config["num_attention_heads"];
  config.erase("head_dim");
  config.erase("partial_rotary_factor");
  return config.dump(2);
}

}  // namespace

Family minicpm3_family() {
  return {"minicpm3", make_minicpm3, minicpm3_presets, {"minicpm3", minicpm3_of_gguf}};
}

}  // namespace sluice
