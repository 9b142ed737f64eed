#pragma once
// The stages of a Hugging Face tokenizer as plain functions, made from their JSON descriptions.
#include <functional>
#include <string>
#include <vector>

#include "src/text/json_fields.h"

namespace sluice::text {

/// Text to normalised text.
using NormalizeStep = std::function<std::string(std::string)>;
/// Cuts each piece into smaller ones. `is_start`: the first piece begins the whole text.
using SplitStep = std::function<void(std::vector<std::string>& pieces, bool is_start)>;
/// Rewrites token texts on their way back to text; `is_start` is false for a token that continues a
/// text.
using DecodeStep = std::function<void(std::vector<std::string>& tokens, bool is_start)>;

/// What goes round the ids of a text: begin-of-text before, end-of-text after.
struct Template {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// A few hundred bytes of JSON could make terabytes of a word: every step that replaces text
/// multiplies what the steps before it made. Errors: kFile when the steps of a normalizer or
/// decoder together make more than 64 bytes of one.
void refuse_growth(const Field& json);

/// Errors of all: kFile naming a type or value that sluice does not know.
NormalizeStep make_normalizer(const Field& json);
SplitStep make_pre_tokenizer(const Field& json);
DecodeStep make_decoder(const Field& json);
Template make_template(const Field& json);

/// GPT-2 style: a split pattern (empty: none), then bytes as characters.
SplitStep byte_level_split(const std::string& pattern, bool add_prefix_space);
DecodeStep byte_level_decode();
NormalizeStep nfc_normalizer();

}  // namespace sluice::text
