#pragma once
// Byte-pair encoding of one word: merges the pair of lowest rank until none is left. O(n log n) in
// the word's length.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::text {

/// Hash of strings and views alike, so that a map is asked without a copy.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// In what one BPE differs from another.
struct BpeOptions {
  bool byte_fallback = false;  ///< characters that are no token become <0xNN> tokens
  bool ignore_merges = false;  ///< a word that is a token as it stands is that token
  bool fuse_unk = false;       ///< adjacent unknown characters become one unknown token
  int32_t unknown = -1;        ///< token of unknown characters; -1: they are left out
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool merge_by_rank_of_result =
      false;  ///< tiktoken: any two parts whose join is a token may merge, rank = its id
};

class Bpe {
 public:
  /// `merges`: pairs of tokens in rank order. Errors: kFile for a merge whose parts or result are
  /// no tokens.
  Bpe(const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
      BpeOptions options);

  /// Appends the ids of `word`, valid UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Part {
    int32_t token;
    int32_t begin, end;      // bytes of the word
    int32_t previous, next;  // parts, -1 none
  };
  struct Merge {
    int32_t rank;
    int32_t result;
  };

  void split(std::string_view word, std::vector<Part>& parts) const;
  void add_unknown(std::string_view character, int32_t begin, std::vector<Part>& parts) const;
  void merge(std::string_view word, std::vector<Part>& parts) const;
  bool find_merge(std::string_view word, const Part& left, const Part& right, Merge& merge) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  std::unordered_map<uint64_t, Merge> merges_;
  std::vector<int32_t> byte_tokens_;  // of <0x00> ... <0xFF>; empty without byte_fallback
};

}  // namespace sluice::text
