#include "src/guide/token_trie.h"

#include <algorithm>
#include <numeric>

namespace sluice::guide {

TokenTrie::TokenTrie(const text::Tokenizer& tokenizer, const std::vector<int32_t>& special) {
  const int32_t count = tokenizer.vocab_size();
  bytes_.resize(static_cast<size_t>(count));
  next_alike_.assign(static_cast<size_t>(count), -1);
  std::vector<int32_t> order;
  for (int32_t token = 0; token < count; ++token) {
    if (tokenizer.is_special(token) &&
        std::find(special.begin(), special.end(), token) == special.end())
      continue;
    bytes_[static_cast<size_t>(token)] = tokenizer.token_bytes(token);
    if (!bytes(token).empty()) order.push_back(token);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return bytes(a) < bytes(b); });
  std::vector<int32_t> open;  // nodes of the current path
  const auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      nodes_[static_cast<size_t>(open.back())].end = static_cast<int32_t>(nodes_.size());
      open.pop_back();
    }
  };
  std::string_view last;
  int32_t last_token = -1;
  for (int32_t token : order) {
    const std::string_view now = bytes(token);
    if (last_token >= 0 && now == last) {
      next_alike_[static_cast<size_t>(last_token)] = token;
      last_token = token;
      continue;
    }
    const auto differ = std::mismatch(last.begin(), last.end(), now.begin(), now.end());
    close_to(static_cast<size_t>(differ.second - now.begin()));
    while (open.size() < now.size()) {
      Node node;
      node.byte = static_cast<uint8_t>(now[open.size()]);
      node.depth = static_cast<int32_t>(open.size()) + 1;
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back(node);
    }
    nodes_.back().token = token;
    most_depth_ = std::max(most_depth_, nodes_.back().depth);
    last = now;
    last_token = token;
  }
  close_to(0);
}

}  // namespace sluice::guide
