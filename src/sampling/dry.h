#pragma once
// DRY, "don't repeat yourself", as its author defined it (oobabooga/text-generation-webui#5637):
// where the end of a text has come before, what followed there is penalised, by how long the end
// is. Linear in the text's length, whatever repeats in it. What a Repeats holds between calls is
// scratch; one a thread.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>
#include <vector>

namespace sluice::sampling {

/// Sequences of tokens over which no repetition goes. Immutable, thread-safe.
class DryBreakers {
 public:
  DryBreakers() = default;
  explicit DryBreakers(std::span<const std::vector<int32_t>> sequences);

  /// Whether the token is one by itself.
  bool has(int32_t token) const { return single_.contains(token); }
  /// Whether one of them ends at reversed[at]; `reversed`: a text, its last token first.
  bool ends_at(std::span<const int32_t> reversed, size_t at) const;

 private:
  struct Node {
    std::map<int32_t, size_t> before;  // by the token before: index in nodes_
    bool is_whole = false;
  };
  std::unordered_set<int32_t> single_;
  std::vector<Node> nodes_;  // longer ones, from their ends; empty: there are none
};

/// A token that has followed what the text ends with, and the longest end that it has followed.
struct Repeat {
  int32_t token = 0;
  int32_t length = 0;  ///< tokens, at least 1
};

/// Finds repetitions, with buffers that it keeps.
class Repeats {
 public:
  /// Of prompt and output together, or of their last `last_n` tokens where that is not -1; each
  /// token once, of those below vocab_size that are no breaker. Valid until the next call.
  std::span<const Repeat> find(std::span<const int32_t> prompt, std::span<const int32_t> output,
                               int64_t last_n, const DryBreakers& breakers, int64_t vocab_size);
  /// Bytes held now.
  int64_t bytes() const noexcept;

 private:
  std::vector<int32_t> reversed_;  // the text, its last token first
  std::vector<int32_t> matches_;   // [reversed_] how much of the end ends there too
  std::vector<int32_t> places_;    // [vocab_size] 1 + index in found_; zero between calls
  std::vector<Repeat> found_;
};

/// What is taken from the logit of a token that would go on with `length` tokens: multiplier *
/// base^(length - allowed), 1e30 at most; 0 below `allowed`.
float dry_penalty(float multiplier, float base, int64_t allowed, int64_t length) noexcept;

}  // namespace sluice::sampling
