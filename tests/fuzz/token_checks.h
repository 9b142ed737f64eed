#pragma once
// What holds of every tokenizer, however it was made, and of every text.
#include "src/text/tokenizer.h"
#include "tests/fuzz/fuzzing.h"

namespace sluice::fuzz {

/// Encodes and decodes `text`. Errors: what the tokenizer throws.
inline void check_tokenizer(const text::Tokenizer& tokenizer, std::string_view text) {
  require(tokenizer.vocab_size() >= 0);
  for (const text::AddSpecial add : {text::AddSpecial::kNo, text::AddSpecial::kYes}) {
    const auto ids = tokenizer.encode(text, add);
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer.vocab_size());
      tokenizer.token_bytes(id);
    }
    tokenizer.decode(ids, text::SkipSpecial::kNo);
    tokenizer.decode(ids, text::SkipSpecial::kYes);
  }
  const int32_t strangers[] = {-1, INT32_MIN, tokenizer.vocab_size(), INT32_MAX};
  require(tokenizer.decode(strangers, text::SkipSpecial::kNo).empty());
  tokenizer.find(text);
}

/// A text that has spaces, a letter of more bytes than one, a digit and a line end.
constexpr std::string_view kText = " Hello, w\xc3\xb6rld 12\n";

}  // namespace sluice::fuzz
