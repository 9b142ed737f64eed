#pragma once
// The decoder that most families are: pre-norm with RMSNorm, rotary positions, grouped-query
// attention, a gated MLP with silu, Hugging Face's names as Llama has them. A family's file says in
// what it differs.
#include <memory>
#include <string>
#include <vector>

#include "src/model/family.h"

namespace sluice {

/// In what one such family differs from another.
struct DecoderTraits {
  std::string family;  ///< config.json's model_type
  bool has_qkv_bias = false;
  bool has_o_bias = false;
  bool has_mlp_bias = false;
  bool has_head_norms = false;  ///< q and k: RMSNorm of each head, before it is turned
  int64_t head_dim = 0;         ///< where config.json has none; 0: hidden_size / heads
  /// By layer, 0: none; one entry: every layer's; empty: no layer has one.
  std::vector<int64_t> windows;
  /// Checkpoints have q, k and v in "qkv_proj", gate and up in "gate_up_proj".
  bool is_fused = false;
  bool gguf_pairs_rows = false;  ///< GGUF files of the family have rows of q and k in pairs
};

/// Errors: kFile for fields that are missing or don't fit together.
std::unique_ptr<FamilyModel> make_gated_decoder(const ModelConfig& config,
                                                const DecoderTraits& traits);

/// "sliding_window" where the family's layers all have one or none: config.json's, `fallback` where
/// it says nothing, 0 where it says null. Errors: kFile.
int64_t read_sliding_window(const ModelConfig& config, int64_t fallback);
/// By layer, of families whose config.json has "use_sliding_window" and "layer_types" or
/// "max_window_layers". Errors: kFile.
std::vector<int64_t> read_layer_windows(const ModelConfig& config);

}  // namespace sluice
