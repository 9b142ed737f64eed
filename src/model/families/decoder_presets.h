#pragma once
// The config.json of decoders that are known by name, from a table of their sizes.
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "src/model/family.h"

namespace sluice {

/// One model, as its published config.json has it.
struct DecoderSizes {
  const char* name;
  int layers, hidden, intermediate, heads, kv_heads;
  int head_dim;  ///< 0: not written, hidden / heads
  int vocab, positions;
  double theta, eps;
  bool tied;
};

/// What config.json says of all of a family.
struct DecoderKind {
  const char* architecture;  ///< "LlamaForCausalLM"
  const char* model_type;
  int bos, eos;
};

/// A config.json of these sizes.
nlohmann::ordered_json decoder_config(const DecoderSizes& sizes, const DecoderKind& kind);
/// The table's models, in its order; `changes` (a merge patch, RFC 7396) are all theirs.
std::vector<KnownModel> decoder_presets(
    std::span<const DecoderSizes> table, const DecoderKind& kind,
    const nlohmann::ordered_json& changes = nlohmann::ordered_json::object());
/// The same behind `presets`, for sizes of which something else is to be said.
void add_presets(std::vector<KnownModel>& presets, std::span<const DecoderSizes> table,
                 const DecoderKind& kind,
                 const nlohmann::ordered_json& changes = nlohmann::ordered_json::object());

}  // namespace sluice
