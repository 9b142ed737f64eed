#pragma once
// tokenizer_config.json: what it says beside any kind of tokenizer file. For .cc files of this
// folder only.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/added_tokens.h"
#include "src/text/json_fields.h"

namespace sluice::text {

struct TokenizerConfig {
  std::vector<AddedToken> added;  ///< added_tokens_decoder
  std::optional<std::string> bos, eos, unk, pad;
  std::optional<bool> adds_bos, adds_eos;
  std::optional<bool> adds_prefix_space;
  /// SentencePiece models: every stretch of text between special tokens gets a space in front.
  bool is_legacy = false;
  std::string tokenizer_class;

  /// The texts of bos, eos, unk and pad that are there.
  std::vector<std::string> special() const;
};

/// Empty `text` gives an empty configuration. Errors: kFile; `origin` names the tokenizer's file.
TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& origin);

/// One entry of added_tokens or added_tokens_decoder. Errors: kFile.
AddedToken read_added_token(const Field& json, int32_t id);

}  // namespace sluice::text
