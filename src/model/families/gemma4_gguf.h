#pragma once
// What GGUF files call Gemma 4's tensors, and their keys as its config.json.
#include <string>

#include "src/model/foreign/gguf_keys.h"

namespace sluice {

/// Of Hugging Face's name without prefix ("layers.3.mlp.up_proj.weight"), which may be of all
/// experts ("{e}"): "blk.3.ffn_up.weight". Empty where such files have none.
std::string gemma4_gguf_name(const std::string& tensor);

/// Errors: kFile for keys that are missing, damaged or not read.
std::string gemma4_of_gguf(const GgufKeys& keys);

}  // namespace sluice
