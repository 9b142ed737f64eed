#pragma once
// Text of one sequence while its tokens arrive; never gives out a part of a character. One thread;
// the tokenizer must outlive it.
#include <utility>
#include <vector>

#include "src/text/tokenizer.h"

namespace sluice::text {

class StreamDecoder {
 public:
  /// Whether the first token begins a text, and so loses the space that a sentencepiece model puts
  /// there, or goes on with one (an answer after its prompt).
  enum class Position { kBegins, kContinues };

  /// `tokenizer` must outlive this. `ends`: tokens that end a text, and so are none where special
  /// tokens are text.
  StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip, Position position = Position::kBegins,
                std::vector<int32_t> ends = {})
      : tokenizer_(tokenizer),
        skip_(skip),
        ends_(std::move(ends)),
        is_first_(position == Position::kBegins) {}

  /// The text that `id` completes; may be empty.
  std::string push(int32_t id);
  /// The rest; bytes that never became a character give U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  SkipSpecial skip_;
  std::vector<int32_t> ends_;
  std::string pending_;
  bool is_first_;
};

}  // namespace sluice::text
