#include "src/model/families/mixture_traits.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

namespace {
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kWide = 1 << 20;

int64_t read_size(const ModelConfig& config, const char* key, int64_t fallback, int64_t most) {
  return fallback > 0 ? config.integer_or(key, fallback, 1, most) : config.integer(key, 1, most);
}
}  // namespace

Mixture read_mixture(const ModelConfig& config, const MixtureKeys& keys, int64_t experts,
                     int64_t chosen, int64_t width) {
  Mixture mixture;
  // transformers 5 saves some with the name that its own code has for it.
  const char* const kSaved = "num_local_experts";
  const bool is_saved = !config.has(keys.experts) && config.has(kSaved);
  mixture.router.experts =
      read_size(config, is_saved ? kSaved : keys.experts, experts, RouterSpec::kMostExperts);
  mixture.router.chosen = read_size(config, keys.chosen, chosen, RouterSpec::kMostExperts);
  mixture.width = read_size(config, keys.width, width, kWide);
  if (mixture.router.chosen > mixture.router.experts)
    config.refuse(fmt::format("\"{}\" is {}, of {} experts", keys.chosen, mixture.router.chosen,
                              mixture.router.experts),
                  "mend the config.json");
  return mixture;
}

Mixture read_granite_mixture(const ModelConfig& config, DecoderNames& names) {
  Mixture mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 8, 2, 0);
  mixture.router.scores = RouterSpec::Scores::kAsTheyAre;
  mixture.router.is_softmax_of_chosen = true;
  names.router.name = "block_sparse_moe.router.layer";
  names.expert_gate.name = "block_sparse_moe.experts.{e}.gate_proj";
  names.expert_up.name = "block_sparse_moe.experts.{e}.up_proj";
  names.expert_down.name = "block_sparse_moe.experts.{e}.down_proj";
  names.gate_up_stack = {"block_sparse_moe.input_linear", nullptr};
  names.down_stack = {"block_sparse_moe.output_linear", nullptr};
  return mixture;
}

void read_groups(const ModelConfig& config, int64_t groups, int64_t kept, RouterSpec& router) {
  if (!config.is_null("n_group"))
    router.groups = read_size(config, "n_group", groups, router.experts);
  if (!config.is_null("topk_group"))
    router.kept_groups = read_size(config, "topk_group", kept, router.groups);
  const bool is_even = router.experts % router.groups == 0;
  if (!is_even || router.chosen > router.kept_groups * (router.experts / router.groups))
    config.refuse(fmt::format("{} experts in {} groups of which {} are kept, {} chosen",
                              router.experts, router.groups, router.kept_groups, router.chosen),
                  "mend \"n_group\" and \"topk_group\" in config.json");
}

void read_corrected_router(const ModelConfig& config, double scale, Mixture& mixture) {
  RouterSpec& router = mixture.router;
  router.scores = RouterSpec::Scores::kSigmoid;
  router.worth = RouterSpec::GroupWorth::kTwoBest;
  router.renormalises = config.boolean_or("norm_topk_prob", true);
  router.eps = 1e-20f;
  router.scale = read_factor(config, "routed_scaling_factor", scale);
  mixture.is_corrected = true;
}

void read_shared_experts(const ModelConfig& config, int64_t count, Mixture& mixture) {
  if (!config.is_null("n_shared_experts"))
    mixture.shared_width =
        config.integer_or("n_shared_experts", count, 0, RouterSpec::kMostExperts) * mixture.width;
}

void read_gated_expert(const ModelConfig& config, int64_t width, Mixture& mixture,
                       DecoderNames& names) {
  mixture.shared_width = config.integer_or("shared_expert_intermediate_size", width, 1, kWide);
  mixture.has_shared_gate = true;
  names.shared_gate.name = "mlp.shared_expert.gate_proj";
  names.shared_up.name = "mlp.shared_expert.up_proj";
  names.shared_down.name = "mlp.shared_expert.down_proj";
}

std::vector<bool> read_dense_beginning(const ModelConfig& config, int64_t fallback) {
  const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
  const int64_t dense = config.integer_or("first_k_dense_replace", fallback, 0, 1 << 20);
  if (config.integer_or("moe_layer_freq", 1, 1, kMostLayers) != 1)
    config.refuse("\"moe_layer_freq\" is not 1",
                  "sluice knows mixtures in every layer but the first");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer) out.push_back(layer >= dense);
  return out;
}

std::vector<bool> read_mlp_types(const ModelConfig& config, int64_t dense) {
  const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
  const std::vector<std::string> types = config.texts("mlp_layer_types");
  if (!types.empty() && std::ssize(types) != layers)
    config.refuse(
        fmt::format("\"mlp_layer_types\" has {} entries for {} layers", types.size(), layers),
        "mend the config.json");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (types.empty()) {
      out.push_back(layer >= dense);
      continue;
    }
    const std::string& type = types[static_cast<size_t>(layer)];
    if (type != "sparse" && type != "dense")
      config.refuse(fmt::format("layer {} has an MLP of type \"{}\"", layer, type),
                    "sluice knows sparse and dense here");
    out.push_back(type == "sparse");
  }
  return out;
}

bool has_mixtures(const DecoderTraits& traits) {
  return std::find(traits.mixture_layers.begin(), traits.mixture_layers.end(), true) !=
         traits.mixture_layers.end();
}

std::vector<bool> read_sparse_step(const ModelConfig& config) {
  const int64_t layers = config.integer("num_hidden_layers", 1, kMostLayers);
  const int64_t step = config.integer_or("decoder_sparse_step", 1, 1, kMostLayers);
  const std::vector<int32_t> dense = config.integers("mlp_only_layers");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer)
    out.push_back((layer + 1) % step == 0 &&
                  std::find(dense.begin(), dense.end(), layer) == dense.end());
  return out;
}

void name_as_mixtral(DecoderNames& names) {
  names.router.name = "block_sparse_moe.gate";
  names.correction.name = "block_sparse_moe.e_score_correction_bias";
  names.expert_gate.name = "block_sparse_moe.experts.{e}.w1";
  names.expert_up.name = "block_sparse_moe.experts.{e}.w3";
  names.expert_down.name = "block_sparse_moe.experts.{e}.w2";
}

}  // namespace sluice
