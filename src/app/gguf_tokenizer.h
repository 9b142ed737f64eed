#pragma once
// The tokenizer inside a GGUF file, as the files that Hugging Face's tools would have beside the
// model.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sluice::app {

/// Name and content of each file: tokenizer.model (SentencePiece) or tokenizer.json (byte-level
/// BPE), and tokenizer_config.json. `where` is for errors. Errors: kFile for keys of the wrong kind
/// and for kinds of tokenizers that are not read; none when the file has no tokenizer.
std::vector<std::pair<std::string, std::string>> gguf_tokenizer_files(
    const nlohmann::json& metadata, const std::string& where);

}  // namespace sluice::app
