#include "src/text/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
// An id far above the number of tokens would make a table of that size.
constexpr int32_t kLargestId = 1 << 24;
}  // namespace

HfTokenizer::HfTokenizer(HfParts parts) : parts_(std::move(parts)) {
  int32_t last = -1;
  const auto count = [&](const std::string& text, int32_t id) {
    if (id < 0 || id > kLargestId)
      throw Error(ErrorKind::kFile, fmt::format("tokenizer: token \"{}\" has id {}", text, id),
                  "the tokenizer file is damaged");
    last = std::max(last, id);
  };
  for (const auto& [text, id] : parts_.vocabulary) count(text, id);
  for (const AddedToken& token : parts_.added) count(token.content, token.id);
  if (last < 0)
    throw Error(ErrorKind::kFile, "tokenizer: the vocabulary is empty",
                "the tokenizer file is damaged");
  texts_.resize(static_cast<size_t>(last) + 1);
  for (const auto& [text, id] : parts_.vocabulary) texts_[static_cast<size_t>(id)] = text;
  for (const AddedToken& token : parts_.added) {
    texts_[static_cast<size_t>(token.id)] = token.content;
    added_ids_.insert(token.id);
    // Not into the vocabulary: merging and whole words know only the model's own tokens.
    added_by_text_.try_emplace(token.content, token.id);
    if (token.is_special) special_.insert(token.id);
    AddedToken placed = token;
    // Looked for in normalised text, so in its normalised spelling.
    if (placed.normalized && parts_.normalize) placed.content = parts_.normalize(placed.content);
    added_.add(std::move(placed));
  }
  bpe_ = std::make_unique<Bpe>(parts_.vocabulary, parts_.merges, parts_.bpe);
  parts_.merges.clear();
  parts_.merges.shrink_to_fit();
  for (const auto* around : {&parts_.around.before, &parts_.around.after})
    for (const int32_t id : *around)
      if (id < 0 || id > last)
        throw Error(
            ErrorKind::kFile,
            fmt::format("tokenizer: post_processor adds token {}, the last is {}", id, last),
            "the tokenizer file is damaged");
  bos_ = parts_.bos;
  eos_ = parts_.eos;
}

void HfTokenizer::encode_words(std::string text, bool is_start, std::vector<int32_t>& ids) const {
  std::vector<std::string> pieces;
  pieces.push_back(std::move(text));
  if (parts_.split) parts_.split(pieces, is_start);
  for (const std::string& piece : pieces) bpe_->encode(piece, ids);
}

void HfTokenizer::encode_plain(std::string_view text, bool is_start,
                               std::vector<int32_t>& ids) const {
  std::string normalized =
      parts_.normalize ? parts_.normalize(std::string(text)) : std::string(text);
  if (added_.empty()) return encode_words(std::move(normalized), is_start, ids);
  bool is_first = is_start;
  for (const AddedTokens::Piece& piece : added_.split(normalized, /*normalized=*/true)) {
    if (piece.token >= 0)
      ids.push_back(piece.token);
    else
      encode_words(std::string(piece.text), is_first, ids);
    is_first = false;
  }
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text, AddSpecial add) const {
  std::string mended;
  if (first_invalid_utf8(text)) {
    mended = mend_utf8(text);
    text = mended;
  }
  std::vector<int32_t> ids;
  if (add == AddSpecial::kYes) ids = parts_.around.before;
  bool is_start = true;
  for (const AddedTokens::Piece& piece : added_.split(text, /*normalized=*/false)) {
    if (piece.token >= 0)
      ids.push_back(piece.token);
    else
      encode_plain(piece.text, is_start, ids);
    is_start = false;
  }
  if (add == AddSpecial::kYes)
    ids.insert(ids.end(), parts_.around.after.begin(), parts_.around.after.end());
  return ids;
}

std::string HfTokenizer::decode(std::span<const int32_t> ids, SkipSpecial skip) const {
  std::vector<std::string> tokens;
  for (int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= texts_.size()) continue;
    if (skip == SkipSpecial::kYes && is_special(id)) continue;
    tokens.push_back(texts_[static_cast<size_t>(id)]);
  }
  if (parts_.decode) parts_.decode(tokens, /*is_start=*/true);
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !parts_.decode) out += ' ';
    out += tokens[i];
  }
  return mend_utf8(out,
                   parts_.bpe.byte_fallback ? Replacement::kEveryByte : Replacement::kEveryPart);
}

std::string HfTokenizer::token_bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= texts_.size()) return {};
  std::vector<std::string> tokens{texts_[static_cast<size_t>(id)]};
  if (added_ids_.contains(id)) return tokens[0];
  if (parts_.decode)
    parts_.decode(tokens, /*is_start=*/false);
  else
    tokens[0] += ' ';
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out;
}

std::optional<int32_t> HfTokenizer::find(std::string_view token) const {
  if (const auto it = parts_.vocabulary.find(token); it != parts_.vocabulary.end())
    return it->second;
  if (const auto it = added_by_text_.find(token); it != added_by_text_.end()) return it->second;
  return std::nullopt;
}

std::string HfTokenizer::description() const {
  return fmt::format("{}, {} tokens", parts_.kind, vocab_size());
}

}  // namespace sluice::text
