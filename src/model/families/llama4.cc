// Llama 4, its part for text: three layers of four turn pairs, and each token sees its own chunk of
// positions; the fourth sees all, turns nothing and scales queries by position. Mixtures of
// experts, whose weights are factors of what goes in, beside one that every row goes to, in every
// layer or in every so manieth.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

constexpr int64_t kMostLayers = 4096;

// One for each layer: whether it turns (1) or not.
std::vector<bool> read_turned_layers(const ModelConfig& config, int64_t layers) {
  const int64_t period = config.integer_or("no_rope_layer_interval", 4, 1, kMostLayers);
  const std::vector<int32_t> said = config.integers("no_rope_layers");
  if (!said.empty() && std::ssize(said) != layers)
    config.refuse(
        fmt::format("\"no_rope_layers\" has {} entries for {} layers", said.size(), layers),
        "mend the config.json");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer)
    out.push_back(said.empty() ? (layer + 1) % period != 0 : said[static_cast<size_t>(layer)] != 0);
  return out;
}

// Layers that turn see chunks, unless "layer_types" says otherwise.
std::vector<DecoderLayer> read_chunks(const ModelConfig& config) {
  const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
  const std::vector<std::string> types = config.texts("layer_types");
  const int64_t chunk = config.is_null("attention_chunk_size")
                            ? 0
                            : config.integer_or("attention_chunk_size", 8192, 1, int64_t{1} << 30);
  if (!types.empty() && std::ssize(types) != layers)
    config.refuse(fmt::format("\"layer_types\" has {} entries for {} layers", types.size(), layers),
                  "mend the config.json");
  std::vector<DecoderLayer> out;
  for (const bool is_turned : read_turned_layers(config, layers)) {
    bool is_chunked = is_turned && chunk > 0;
    if (!types.empty()) {
      const std::string& type = types[out.size()];
      if (type != "chunked_attention" && type != "full_attention")
        config.refuse(fmt::format("layer {} has type \"{}\"", out.size(), type),
                      "sluice knows chunked_attention and full_attention here");
      is_chunked = type == "chunked_attention";
      if (is_chunked && chunk == 0)
        config.refuse("layers attend in chunks, but \"attention_chunk_size\" is null",
                      "mend the config.json");
    }
    out.push_back({is_chunked ? chunk : 0, is_turned ? 0 : -1, is_chunked});
  }
  return out;
}

std::vector<bool> read_expert_layers(const ModelConfig& config) {
  const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
  const int64_t step = config.integer_or("interleave_moe_layer_step", 1, 1, kMostLayers);
  const std::vector<int32_t> said = config.integers("moe_layers");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer)
    out.push_back(config.has("moe_layers")
                      ? std::find(said.begin(), said.end(), layer) != said.end()
                      : (layer + 1) % step == 0);
  return out;
}

void name_tensors(DecoderNames& names) {
  names.gate.name = "feed_forward.gate_proj";
  names.up.name = "feed_forward.up_proj";
  names.down.name = "feed_forward.down_proj";
  names.router.name = "feed_forward.router";
  names.expert_gate.name = "feed_forward.experts.{e}.gate_proj";
  names.expert_up.name = "feed_forward.experts.{e}.up_proj";
  names.expert_down.name = "feed_forward.experts.{e}.down_proj";
  names.gate_up_stack = {"feed_forward.experts.gate_up_proj", nullptr};
  names.down_stack = {"feed_forward.experts.down_proj", nullptr};
  names.shared_gate.name = "feed_forward.shared_expert.gate_proj";
  names.shared_up.name = "feed_forward.shared_expert.up_proj";
  names.shared_down.name = "feed_forward.shared_expert.down_proj";
}

Mixture read_llama4_mixture(const ModelConfig& config) {
  Mixture mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 16, 1, 8192);
  mixture.router.scores = RouterSpec::Scores::kAsTheyAre;
  mixture.router.is_sigmoid_of_chosen = true;
  mixture.weighs_inputs = true;
  mixture.has_turned_halves = true;
  mixture.shared_width = mixture.width;
  return mixture;
}

std::unique_ptr<FamilyModel> make_llama4(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "llama4_text",
                       .heads = 40,
                       .vocab_size = 202048,
                       .head_dim = 128,
                       .kv_heads = 8,
                       .intermediate_size = 16384,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .rope = RopeLayout::kPairs,
                       .layers = read_chunks(config)};
  traits.keys.intermediate = "intermediate_size_mlp";
  if (config.boolean_or("use_qk_norm", true)) traits.qk_norm = QkNorm::kBehindRope;
  traits.ropes = {read_rope(config, read_head_dim(config, 128), {.theta = 5e5})};
  if (config.boolean_or("attn_temperature_tuning", true)) {
    traits.query_factor = static_cast<float>(config.number_or("attn_scale", 0.1));
    traits.query_period = config.integer_or("floor_scale", 8192, 1, int64_t{1} << 30);
    traits.query_shift = 1;
    traits.scales_turned_queries = false;
  }
  traits.mixture_layers = read_expert_layers(config);
  if (has_mixtures(traits)) traits.mixture = read_llama4_mixture(config);
  name_tensors(traits.names);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kLlama4{"Llama4ForCausalLM", "llama4_text", 200000, 200001};
constexpr DecoderSizes kScout[] = {
    {"llama-4-scout", 48, 5120, 8192, 40, 8, 128, 202048, 10485760, 5e5, 1e-5, false}};
constexpr DecoderSizes kMaverick[] = {
    {"llama-4-maverick", 48, 5120, 8192, 40, 8, 128, 202048, 1048576, 5e5, 1e-5, false}};

std::vector<KnownModel> llama4_presets() {
  nlohmann::ordered_json changes{{"intermediate_size_mlp", 16384},
                                 {"num_local_experts", 16},
                                 {"num_experts_per_tok", 1},
                                 {"interleave_moe_layer_step", 1},
                                 {"attention_chunk_size", 8192},
                                 {"use_qk_norm", true},
                                 {"attn_temperature_tuning", true},
                                 {"rope_scaling",
                                  {{"rope_type", "llama3"},
                                   {"factor", 16.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 1.0},
                                   {"original_max_position_embeddings", 8192}}}};
  std::vector<KnownModel> presets = decoder_presets(kScout, kLlama4, changes);
  changes["num_local_experts"] = 128;
  changes["interleave_moe_layer_step"] = 2;
  changes["use_qk_norm"] = false;
  changes["rope_scaling"] = nullptr;
  add_presets(presets, kMaverick, kLlama4, changes);
  return presets;
}

// What files do not say is as released models have it, Maverick's heads without norms; a window of
// 0 says that every layer sees all and turns.
std::string llama4_of_gguf(const GgufKeys& keys) {
  const std::string p = keys.prefix();
  nlohmann::json config =
      gguf_mixture_config(keys,
                          {.architecture = kLlama4.architecture,
                           .model_type = kLlama4.model_type,
                           .also = {"interleave_moe_layer_step", "attention.sliding_window"}},
                          {.experts = "num_local_experts",
                           .width = "intermediate_size",
                           .always_does_so = true,
                           .has_one_shared = true,
                           .gating = GgufGating::kSigmoid});
  config["intermediate_size_mlp"] = keys.need_integer(p + "feed_forward_length");
  config["interleave_moe_layer_step"] = keys.need_integer(p + "interleave_moe_layer_step");
  config["attention_bias"] = keys.has_attention_bias();
  config["use_qk_norm"] = config["num_local_experts"] != 128;
  const bool sees_all = keys.integer(p + "attention.sliding_window") == 0;
  config["attention_chunk_size"] = sees_all ? nlohmann::json() : nlohmann::json(8192);
  config["attn_temperature_tuning"] = !sees_all;
  if (sees_all)
    config["no_rope_layers"] = std::vector<int>(config["num_hidden_layers"].get<size_t>(), 1);
  return config.dump(2);
}

}  // namespace

Family llama4_family() {
  return {"llama4_text", make_llama4, llama4_presets, {"llama4", llama4_of_gguf}};
}

}  // namespace sluice
