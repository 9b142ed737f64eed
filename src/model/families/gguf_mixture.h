#pragma once
// The keys that GGUF files have of a mixture of experts, as its config.json.
#include "src/model/families/gguf_decoder.h"

namespace sluice {

/// How a router's scores become worth, as GGUF files number it.
enum class GgufGating : int64_t {
  kSoftmax = 1,
  kSigmoid = 2,
  kSoftmaxOfChosen = 3,
};

/// What a family of mixtures has in GGUF files, and what config.json calls it.
struct GgufMixtureKind {
  const char* experts = "num_experts";
  const char* width = "moe_intermediate_size";
  const char* shared_width = nullptr;  ///< of experts that every row goes to; null: not read
  const char* scale = nullptr;         ///< of all weights; null: 1
  const char* beginning = nullptr;     ///< of layers without experts; null: any may be without
  /// Whether weights of those that were chosen add up to one, where a file does not say.
  bool renormalises = false;
  bool always_does_so = false;  ///< config.json does not say: files that say otherwise are refused
  bool has_groups = false;      ///< "n_group" and "topk_group" are read
  bool has_shared = false;      ///< "n_shared_experts" is, as wide as the others each
  bool has_one_shared = false;  ///< there is one, and neither file nor config.json says so
  GgufGating gating = GgufGating::kSoftmax;  ///< no other is; files may leave it out
};

/// gguf_decoder_config() and what a mixture adds: counts and widths, "norm_topk_prob", which layers
/// are without experts ("mlp_only_layers" where any may be). Errors: kFile likewise, and for counts
/// that do not fit together or a router of another kind.
nlohmann::json gguf_mixture_config(const GgufKeys& keys, GgufDecoderKind kind,
                                   const GgufMixtureKind& mixture);

}  // namespace sluice
