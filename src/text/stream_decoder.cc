#include "src/text/stream_decoder.h"

#include <algorithm>
#include <array>

#include "src/text/utf8.h"

namespace sluice::text {

namespace {
// As decode() does it: where there are tokens of single bytes, each that is part of no character is
// replaced.
std::string mended(const Tokenizer& tokenizer, std::string_view text) {
  if (!first_invalid_utf8(text)) return std::string(text);
  const auto byte = tokenizer.find("<0xE6>");
  const bool has_bytes = byte && tokenizer.token_bytes(*byte).size() == 1;
  return mend_utf8(text, has_bytes ? Replacement::kEveryByte : Replacement::kEveryPart);
}
}  // namespace

std::string StreamDecoder::push(int32_t id) {
  if (skip_ == SkipSpecial::kYes ? tokenizer_.is_special(id)
                                 : std::find(ends_.begin(), ends_.end(), id) != ends_.end())
    return {};
  const std::string whole = tokenizer_.token_bytes(id);
  if (is_first_ && !whole.empty()) {
    // The tokenizer itself knows what a text's beginning loses: a space, or all of them.
    const std::string first = tokenizer_.decode({&id, 1}, skip_);
    pending_ = whole.ends_with(first) ? first : whole;
    const std::array<int32_t, 2> twice{id, id};
    is_first_ = pending_.empty() && tokenizer_.decode(twice, skip_).empty();
  } else {
    pending_ += whole;
  }
  const size_t complete = complete_prefix(pending_);
  std::string out = mended(tokenizer_, std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = mended(tokenizer_, pending_);
  pending_.clear();
  return out;
}

}  // namespace sluice::text
