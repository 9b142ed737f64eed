#pragma once
// Which tokens of a GGUF file end an answer. Its keys name some; others are known by their text
// alone, since files often name one token and a chat's turns end with another.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"

namespace sluice {

/// A token that ends an answer.
struct EndToken {
  int32_t id = 0;
  std::string text;
  std::string from;  ///< who says so: a key, a file, or "its text"
};

/// In the order of who says so: keys first; no id twice. Without texts of a file without a
/// vocabulary. Errors: kFile for a vocabulary that can't be read.
std::vector<EndToken> gguf_end_tokens(const io::GgufMetadata& metadata);

/// The token that "tokenizer.ggml.bos_token_id" names; nothing where there is none.
std::optional<int32_t> gguf_begin_token(const io::GgufMetadata& metadata);

/// Whether a token of this text ends turns in every model that has it, whatever its kind.
bool is_end_text(std::string_view token);

/// A sentence for each key that names a token which is none (padding of 4294967295, say): it is
/// passed over.
std::vector<std::string> gguf_notes_of_ids(const io::GgufMetadata& metadata);

}  // namespace sluice
