#pragma once
// A made-up vocabulary: token t is the t-th of given texts; some are special.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/text/tokenizer.h"

namespace sluice::testing {

class ListTokenizer final : public text::Tokenizer {
 public:
  ListTokenizer(std::vector<std::string> tokens, std::set<int32_t> special)
      : tokens_(std::move(tokens)), special_(std::move(special)) {}

  std::vector<int32_t> encode(std::string_view, text::AddSpecial) const override { return {}; }
  std::string decode(std::span<const int32_t> ids, text::SkipSpecial) const override {
    std::string out;
    for (int32_t id : ids)
      if (!is_special(id)) out += token_bytes(id);
    return out;
  }
  std::string token_bytes(int32_t id) const override {
    return id < vocab_size() ? tokens_[static_cast<size_t>(id)] : std::string();
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t id) const override { return special_.contains(id); }
  std::string description() const override { return "a list"; }

 private:
  std::vector<std::string> tokens_;
  std::set<int32_t> special_;
};

/// All bytes from ' ' to '~' and a few longer texts, up to `count` tokens; 0 to 2 are special.
inline ListTokenizer json_tokenizer(size_t count) {
  std::vector<std::string> tokens{"<pad>", "<s>", "</s>"};
  for (const char* text :
       {"{\"",  "\":", "\": ", "\",", "\"}", "true", "false", "null", "ab",   "abc",
        "a\":", "12",  "}}",   "],",  "\"a", "\n",   "é",     "\xC3", "\xA9", "😀"})
    tokens.push_back(text);
  for (char c = ' '; c <= '~'; ++c) tokens.push_back(std::string(1, c));
  while (tokens.size() < count) tokens.push_back("w" + std::to_string(tokens.size()));
  tokens.resize(count);
  return {std::move(tokens), {0, 1, 2}};
}

}  // namespace sluice::testing
