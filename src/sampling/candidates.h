#pragma once
// Which tokens top-k and top-p keep, without sorting the vocabulary: one pass with a small buffer
// for top-k, selection by mass for top-p. Callers pass buffers, which only grow. Expects no NaN.
// Internal to the sampler; pure, thread-safe.
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::sampling {

/// A token and its weight; ranked by falling weight, among equals by rising token.
struct Ranked {
  float weight;
  int32_t token;

  bool before(const Ranked& other) const noexcept {
    return weight != other.weight ? weight > other.weight : token < other.token;
  }
};

/// The k-th largest of `values`, 1 <= k <= values.size().  O(values.size() + k) expected.
float kth_largest(std::span<const float> values, int64_t k, std::vector<float>& buffer);

/// The last token that top-p keeps: the first, by rank, with which the sum of weights reaches top_p
/// * total.
///   tokens, weights  [n], n >= 1, tokens rising       total  sum of weights, > 0       top_p  [0,
///   1)
/// A sum within float's rounding of top_p (1e-7 of the total) counts as reached.  O(n) expected.
Ranked last_of_top_p(std::span<const int32_t> tokens, std::span<const float> weights, double total,
                     float top_p, std::vector<Ranked>& buffer);

/// Tokens whose logit is >= threshold and not -inf, by rising id, and their logits.
/// O(logits.size()).
void gather(std::span<const float> logits, float threshold, std::vector<int32_t>& tokens,
            std::vector<float>& kept_logits);

}  // namespace sluice::sampling
