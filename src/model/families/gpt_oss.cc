// gpt-oss: mixtures of experts with biases and clamped gates, attention with sinks, a window in
// every other layer. Released checkpoints have the experts of a layer in stacks, in MXFP4.
#include <fmt/format.h>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

constexpr int64_t kHeadDim = 64;

float read_clamp(const ModelConfig& config, const char* key, double fallback) {
  const double value = config.number_or(key, fallback);
  if (!(value > 0 && value <= 1e6))
    config.refuse(fmt::format("\"{}\" is {}, outside 0..1e6", key, value), "mend the config.json");
  return static_cast<float>(value);
}

// What config.json says nothing of is scaled as transformers would: YaRN of 32 times 4096.
Rope read_scaled_rope(const ModelConfig& config) {
  constexpr const char* kScaling =
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
          "truncate": false, "original_max_position_embeddings": 4096}})";
  const RopeKeys keys{.theta = 150000};
  const int64_t head_dim = read_head_dim(config, kHeadDim);
  const bool is_said = config.has("rope_parameters") || config.has("rope_scaling");
  if (is_said) return read_rope(config, head_dim, keys);
  return read_rope(ModelConfig(kScaling, config.origin()), head_dim,
                   {.theta = config.number_or("rope_theta", keys.theta)});
}

std::unique_ptr<FamilyModel> make_gpt_oss(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", true);
  if (config.text_or("hidden_act", "silu") != "silu")
    config.refuse("\"hidden_act\" is not silu",
                  "its experts gate in one way: mend the config.json");
  DecoderTraits traits{.family = "gpt_oss",
                       .head_dim = kHeadDim,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .has_sinks = true};
  traits.ropes = {read_scaled_rope(config)};
  const int64_t window = read_sliding_window(config, 128);
  for (const bool has_window : read_window_layers(config, 2))
    traits.layers.push_back({has_window ? window : 0, 0});
  Mixture mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 128, 4, 2880);
  mixture.router.scores = RouterSpec::Scores::kAsTheyAre;
  mixture.router.is_softmax_of_chosen = true;
  mixture.has_router_bias = true;
  mixture.has_expert_bias = true;
  mixture.has_turned_stacks = true;
  mixture.clamp = {read_clamp(config, "swiglu_limit", 7),
                   read_clamp(config, "swiglu_alpha", 1.702)};
  if (const auto stored = config.object("quantization_config");
      stored && stored->text_or("quant_method", "") == "mxfp4")
    mixture.stored = {Encoding::kMxfp4, DType::kBF16, 32};
  traits.mixture = mixture;
  traits.names.router.name = "mlp.router";
  traits.names.mlp_norm.gguf = "post_attention_norm";
  traits.names.gate_up_stack = {"mlp.experts.gate_up_proj", nullptr};
  traits.names.down_stack = {"mlp.experts.down_proj", nullptr};
  return make_decoder(config, std::move(traits));
}

// Files say nothing of the clamp, nor of the bounds of YaRN's ramp, which are not rounded.
std::string gpt_oss_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(keys,
                                              {.architecture = "GptOssForCausalLM",
                                               .model_type = "gpt_oss",
                                               .also = {"attention.sliding_window"},
                                               .has_yarn = true},
                                              {.experts = "num_local_experts",
                                               .width = "intermediate_size",
                                               .renormalises = true,
                                               .always_does_so = true,
                                               .gating = GgufGating::kSoftmaxOfChosen});
  config["attention_bias"] = keys.has_attention_bias();
  config["sliding_window"] = keys.need_integer(keys.prefix() + "attention.sliding_window");
  if (!config.contains("rope_scaling")) config["rope_scaling"] = {{"rope_type", "default"}};
  if (config["rope_scaling"]["rope_type"] == "yarn") config["rope_scaling"]["truncate"] = false;
  return config.dump(2);
}

constexpr DecoderKind kGptOss{"GptOssForCausalLM", "gpt_oss", 199998, 200002};
constexpr DecoderSizes kSmall[] = {
    {"gpt-oss-20b", 24, 2880, 2880, 64, 8, kHeadDim, 201088, 131072, 150000, 1e-5, false}};
constexpr DecoderSizes kLarge[] = {
    {"gpt-oss-120b", 36, 2880, 2880, 64, 8, kHeadDim, 201088, 131072, 150000, 1e-5, false}};

std::vector<KnownModel> gpt_oss_presets() {
  nlohmann::ordered_json changes{{"attention_bias", true},
                                 {"sliding_window", 128},
                                 {"num_local_experts", 32},
                                 {"num_experts_per_tok", 4},
                                 {"swiglu_limit", 7.0},
                                 {"rope_scaling",
                                  {{"rope_type", "yarn"},
                                   {"factor", 32.0},
                                   {"beta_fast", 32.0},
                                   {"beta_slow", 1.0},
                                   {"truncate", false},
                                   {"original_max_position_embeddings", 4096}}},
                                 {"quantization_config", {{"quant_method", "mxfp4"}}}};
  std::vector<KnownModel> presets = decoder_presets(kSmall, kGptOss, changes);
  changes["num_local_experts"] = 128;
  add_presets(presets, kLarge, kGptOss, changes);
  return presets;
}

}  // namespace

Family gpt_oss_family() {
  return {"gpt_oss", make_gpt_oss, gpt_oss_presets, {"gpt-oss", gpt_oss_of_gguf}};
}

}  // namespace sluice
