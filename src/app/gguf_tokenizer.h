#pragma once
// The tokenizer inside a GGUF file, as the files that Hugging Face's tools would have beside the
// model.
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"

namespace sluice::app {

/// Name and content of each file: tokenizer.model (SentencePiece) or tokenizer.json (byte-level
/// BPE), and tokenizer_config.json; none when the file has no tokenizer. `where` is for errors;
/// `pretokenizer` names a rule of src/text/split_rules.h to take instead of the file's, empty: the
/// file's. Errors: kFile for keys of the wrong kind, for kinds of tokenizers that are not read and
/// for rules that are not known; kUser for a `pretokenizer` that is not known.
std::vector<std::pair<std::string, std::string>> gguf_tokenizer_files(
    const io::GgufMetadata& metadata, const std::string& where,
    const std::string& pretokenizer = {});

/// tokenizer_config.json alone, which no rule is needed for; empty when the file has no tokenizer.
/// Errors: kFile for keys of the wrong kind.
std::string gguf_tokenizer_config(const io::GgufMetadata& metadata, const std::string& where);

}  // namespace sluice::app
