#include "src/text/stream_decoder.h"

#include <algorithm>

#include "src/text/utf8.h"

namespace sluice::text {

std::string StreamDecoder::push(int32_t id) {
  if (skip_ == SkipSpecial::kYes ? tokenizer_.is_special(id)
                                 : std::find(ends_.begin(), ends_.end(), id) != ends_.end())
    return {};
  if (is_first_) {
    // The tokenizer itself knows what a first token loses (a leading space, mostly).
    const std::string whole = tokenizer_.token_bytes(id);
    const std::string first = tokenizer_.decode({&id, 1}, skip_);
    const bool loses_space = whole.starts_with(' ') && !first.starts_with(' ');
    pending_ = loses_space ? whole.substr(1) : whole;
    is_first_ = whole.empty();
  } else {
    pending_ += tokenizer_.token_bytes(id);
  }
  const size_t complete = complete_prefix(pending_);
  std::string out = mend_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = mend_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace sluice::text
