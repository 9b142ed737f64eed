#include "src/engine/passes/class_chooser.h"

namespace sluice {

size_t ClassChooser::expect(int64_t tokens) const noexcept {
  const size_t by_border = policy_.pass_class_of(tokens);
  if (by_border >= last_) return by_border;
  const int64_t from = policy_.execution(last_).from_tokens;
  return tokens >= from - from / 16 ? last_ : by_border;
}

size_t ClassChooser::choose(int64_t tokens) {
  last_ = expect(tokens);
  return last_;
}

}  // namespace sluice
