#pragma once
// A GGUF file's keys as the config.json that Hugging Face would have: the family does it whose
// architecture the file names.
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace sluice {

/// config.json's text. Reads one small tensor where there is one (rope_freqs). Errors: kFile for an
/// architecture or setting that is not read, a key that is missing or of the wrong kind.
std::string gguf_config_json(const io::Checkpoint& checkpoint);

}  // namespace sluice
