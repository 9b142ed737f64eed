#pragma once
// Text of one sequence while its tokens arrive; never gives out a part of a character. One thread; the tokenizer must
// outlive it.
#include "src/text/tokenizer.h"

namespace sluice::text {

class StreamDecoder {
 public:
  /// `tokenizer` must outlive this.
  StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip) : tokenizer_(tokenizer), skip_(skip) {}

  /// The text that `id` completes; may be empty.
  std::string push(int32_t id);
  /// The rest; bytes that never became a character give U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  SkipSpecial skip_;
  std::string pending_;
  bool is_first_;
};

}  // namespace sluice::text
