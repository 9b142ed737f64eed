#pragma once
// Filters beside top-k, top-p and min-p: which of the tokens that are left may be drawn. Each takes
// tokens by rising id with their weights, exp((logit - max) / temperature), drops those that it
// does not keep, and returns the sum of what is left. At least one token with a weight is always
// kept. Internal to the sampler; pure, thread-safe; buffers only grow. Expects no NaN.
#include <cstdint>
#include <span>
#include <vector>

#include "src/sampling/candidates.h"

namespace sluice::sampling {

/// The tokens that may be drawn, by rising id, and the sum of their weights, > 0.
struct Kept {
  std::vector<int32_t>& tokens;
  std::vector<float>& weights;
  double total;
};

/// A token with its distance from what is typical.
struct Shifted {
  double shift;
  float weight;
  int32_t token;

  bool before(const Shifted& other) const noexcept {
    return shift != other.shift ? shift < other.shift : token < other.token;
  }
};

/// Top-n-sigma (arXiv:2411.07641): the least logit that is kept, n standard deviations below
/// `max`, the largest. The deviation is of all logits but those that are -inf.
///   logits  [n]       max  finite       sigmas  > 0
float top_sigma_threshold(std::span<const float> logits, float max, float sigmas) noexcept;

/// Locally typical sampling (arXiv:2202.00666): the tokens whose information -ln p is
/// nearest to the entropy, until their probabilities reach typical_p (within 1e-7). Among equals
/// lower ids come first.  O(n) expected.
void keep_typical(Kept& kept, float typical_p, std::vector<Shifted>& buffer);

/// XTC (oobabooga/text-generation-webui#6335): of the tokens with a probability of `threshold` or
/// more, all but the least likely are dropped; among equals the one of the highest id stays.
void exclude_top(Kept& kept, float threshold);

/// Mirostat (arXiv:2007.14966). Version 2 keeps what surprises by `bits` at most: -log2 p <= bits.
/// Version 1 keeps the k likeliest, k by its Algorithm 1: from `bits`, the number of tokens in the
/// vocabulary, and the exponent of Zipf's law that the 100 likeliest follow; rounded, at least 1.
void keep_mirostat(Kept& kept, int version, double bits, int64_t vocab_size,
                   std::vector<Ranked>& buffer);

}  // namespace sluice::sampling
