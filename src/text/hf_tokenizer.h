#pragma once
// The stages of a Hugging Face "fast" BPE tokenizer put together. Made by the loaders.
#include <memory>
#include <unordered_set>

#include "src/text/added_tokens.h"
#include "src/text/bpe.h"
#include "src/text/steps.h"
#include "src/text/tokenizer.h"

namespace sluice::text {

/// The stages of a tokenizer.json.
struct HfParts {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  BpeOptions bpe;
  NormalizeStep normalize;  ///< may be empty
  SplitStep split;          ///< may be empty
  DecodeStep decode;        ///< may be empty: token texts joined by spaces, as Hugging Face does
  Template around;
  std::vector<AddedToken> added;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::string kind;
};

class HfTokenizer final : public Tokenizer {
 public:
  explicit HfTokenizer(HfParts parts);

  std::vector<int32_t> encode(std::string_view text, AddSpecial add) const override;
  std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const override;
  std::string token_bytes(int32_t id) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(texts_.size()); }
  std::optional<int32_t> find(std::string_view token) const override;
  bool is_special(int32_t id) const override { return special_.contains(id); }
  std::string description() const override;

 private:
  void encode_plain(std::string_view text, bool is_start, std::vector<int32_t>& ids) const;
  void encode_words(std::string text, bool is_start, std::vector<int32_t>& ids) const;

  HfParts parts_;
  std::unique_ptr<Bpe> bpe_;  // looks into parts_.vocabulary
  AddedTokens added_;
  Vocabulary added_by_text_;
  std::vector<std::string> texts_;  // by id; empty where there is no token
  std::unordered_set<int32_t> special_;
  std::unordered_set<int32_t> added_ids_;
};

/// Reads bos and eos, and which special tokens surround a text, from tokenizer_config.json when
/// given.
std::unique_ptr<Tokenizer> load_tokenizer_json(std::string_view json, std::string_view config_json,
                                               const std::string& origin);
/// vocab.json and merges.txt. `family_hint`: config.json's model_type, may be empty.
std::unique_ptr<Tokenizer> load_vocab_merges(std::string_view vocab_json, std::string_view merges,
                                             std::string_view config_json,
                                             std::string_view family_hint,
                                             const std::string& origin);
/// Lines of "base64 rank" (Llama 3's tokenizer.model, Kimi's tiktoken.model).
std::unique_ptr<Tokenizer> load_tiktoken(std::string_view text, std::string_view config_json,
                                         const std::string& origin);
bool looks_like_tiktoken(std::string_view text);
/// A SentencePiece model through its own library.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& bytes,
                                              std::string_view config_json,
                                              const std::string& origin);

}  // namespace sluice::text
