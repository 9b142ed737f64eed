#pragma once
// What families of mixtures of experts read from config.json alike.
#include "src/model/families/decoder.h"

namespace sluice {

/// What config.json calls a mixture's sizes.
struct MixtureKeys {
  const char* experts = "num_experts";
  const char* chosen = "num_experts_per_tok";
  const char* width = "moe_intermediate_size";
};

/// Counts and the width of an expert; 0 where config.json must say it. Errors: kFile.
Mixture read_mixture(const ModelConfig& config, const MixtureKeys& keys, int64_t experts,
                     int64_t chosen, int64_t width);
/// Granite's: weights are a softmax of what is chosen, and checkpoints have the experts of a layer
/// in two stacks, which `names` then says. Errors: kFile.
Mixture read_granite_mixture(const ModelConfig& config, DecoderNames& names);
/// Groups of experts of which some are kept. Errors: kFile where they don't fit together.
void read_groups(const ModelConfig& config, int64_t groups, int64_t kept, RouterSpec& router);
/// A router that corrects sigmoids, chooses by groups and scales (DeepSeek-V3, arXiv:2412.19437).
/// Errors: kFile.
void read_corrected_router(const ModelConfig& config, double scale, Mixture& mixture);
/// Experts that every row goes to, side by side as one. Errors: kFile.
void read_shared_experts(const ModelConfig& config, int64_t count, Mixture& mixture);

/// One that every row goes to as far as a gate says, with Qwen's names. Errors: kFile.
void read_gated_expert(const ModelConfig& config, int64_t width, Mixture& mixture,
                       DecoderNames& names);

/// Which layers are mixtures where the first are not: "first_k_dense_replace". Errors: kFile.
std::vector<bool> read_dense_beginning(const ModelConfig& config, int64_t fallback);
/// The same by "mlp_layer_types"; where it is absent the first `dense` are not. Errors: kFile.
std::vector<bool> read_mlp_types(const ModelConfig& config, int64_t dense);
/// Whether any layer is one.
bool has_mixtures(const DecoderTraits& traits);
/// Where every "decoder_sparse_step"-th is one, but none of "mlp_only_layers". Errors: kFile.
std::vector<bool> read_sparse_step(const ModelConfig& config);

/// Names of Mixtral's checkpoints.
void name_as_mixtral(DecoderNames& names);

}  // namespace sluice
