#pragma once
// A GGUF file's keys as the config.json that Hugging Face would have, and its tensors by Hugging
// Face's names.
#include <optional>
#include <string>

#include "io/checkpoint.h"

namespace sluice {

/// config.json's text. Reads one small tensor (rope_freqs) where there is one. Errors: kFile for an
/// architecture or setting that is not read, a key that is missing or of the wrong kind.
std::string gguf_config_json(const io::Checkpoint& checkpoint);

struct GgufName {
  std::string tensor;  ///< "blk.3.attn_q.weight"
  /// Heads whose rows the file has in pairs for its rotary positions (row 2 i + j of a head is
  /// Hugging Face's row j half + i); 0: in order.
  int64_t paired_heads = 0;
};
/// The file's name for "model.layers.3.self_attn.q_proj.weight", or nothing. `heads`, `kv_heads`:
/// of the model.
std::optional<GgufName> gguf_name(const std::string& name, int64_t heads, int64_t kv_heads);

}  // namespace sluice
