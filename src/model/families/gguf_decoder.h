#pragma once
// The keys that GGUF files have of a gated decoder, as its config.json.
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "src/model/foreign/gguf_keys.h"

namespace sluice {

/// What a GGUF file's architecture is called in config.json.
struct GgufDecoderKind {
  const char* architecture;  ///< config.json's: "LlamaForCausalLM"
  const char* model_type;
  const char* eps = "rms_norm_eps";         ///< config.json's; others are LayerNorm's
  bool turns_a_part = false;                ///< files say how much of a head is turned
  std::vector<std::string_view> also = {};  ///< keys that the family reads beside the usual ones
  bool has_experts = false;                 ///< gguf_mixture_config() reads what there is of them
  bool has_yarn = false;                    ///< rotary positions may be scaled so
  bool has_longrope = false;                ///< likewise, by factors in two tensors
  bool has_drafts = false;                  ///< layers at the end draft tokens; mixtures' may
  /// KV heads and widths of MLPs are lists, positions turn in a way of its own: the family says
  /// how, and sets the first of each.
  bool differs_by_layer = false;
  int64_t head_dim = 0;       ///< as the family finds it; 0: as files say
  bool has_attention = true;  ///< else files say that there are no heads
};

/// Errors: kFile for a key that is missing or of the wrong kind, or that nobody here reads.
nlohmann::json gguf_decoder_config(const GgufKeys& keys, const GgufDecoderKind& kind);

}  // namespace sluice
