#pragma once
// The bytes of all tokens of a vocabulary as a tree laid out in one row, so that all tokens that
// begin alike are passed over together. Immutable.
#include <cstdint>
#include <memory>
#include <vector>

#include "src/text/tokenizer.h"

namespace sluice::guide {

class TokenTrie {
 public:
  /// Special tokens but those in `special`, and those without bytes, are left out.
  explicit TokenTrie(const text::Tokenizer& tokenizer, const std::vector<int32_t>& special = {});

  struct Node {
    uint8_t byte = 0;
    int32_t depth = 0;   ///< bytes up to here, this one counted
    int32_t end = 0;     ///< index after the last node below
    int32_t token = -1;  ///< that ends here; more by next_alike
  };
  /// Every node stands before those below it.
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  /// Another token of the same bytes, or -1.
  int32_t next_alike(int32_t token) const noexcept {
    return next_alike_[static_cast<size_t>(token)];
  }
  /// The bytes of a token; nothing for those left out.
  const std::string& bytes(int32_t token) const noexcept {
    return bytes_[static_cast<size_t>(token)];
  }
  int32_t vocab_size() const noexcept { return static_cast<int32_t>(bytes_.size()); }
  int32_t most_depth() const noexcept { return most_depth_; }

 private:
  std::vector<std::string> bytes_;
  std::vector<int32_t> next_alike_;
  std::vector<Node> nodes_;
  int32_t most_depth_ = 0;
};

}  // namespace sluice::guide
