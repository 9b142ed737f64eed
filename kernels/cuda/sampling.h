#pragma once
// The next token of rows of logits, chosen where the logits are: nothing of a row goes to the host
// but what it asks for. The sets that temperature, top-k, top-p and min-p keep, and their order,
// are sampling::Sampler's (src/sampling/sampler.h). Weights are summed as integers (exp, times
// 2^40), so that sums do not depend on the order of threads. No sorting: the least value that is
// kept is searched by counting and weighing what lies above a few values at a time.
#include "kernels/cuda/types.h"

namespace sluice::cuda {

/// What is done to one token's logit before all else, in this order.
struct LogitChange {
  int32_t token = 0;
  float bias = 0;        ///< added
  float repetition = 1;  ///< divides what is above zero, multiplies what is below
  float penalty = 0;     ///< subtracted
  uint32_t is_banned = 0;
  float unchanged = 0;  ///< the kernel's own: what the logit was
};

constexpr int kMostAlternatives = 20;
/// What weights are multiplied with before they are rounded.
constexpr double kWeightScale = 1099511627776.0;  // 2^40

/// How one row's token is chosen.
struct SamplingRow {
  int32_t row = 0;            ///< of the logits
  float temperature = 0;      ///< 0: the largest, of equals the lowest token
  int32_t top_k = 0;          ///< 0: off
  float top_p = 1;            ///< 1: off
  float min_p = 0;            ///< 0: off
  int32_t alternatives = -1;  ///< the likeliest before any change, at most kMostAlternatives; 0:
                              ///< none but the sum; -1: nor that
  int32_t first_change = 0;   ///< of SamplingArguments::changes
  int32_t changes = 0;
  int32_t mask = -1;   ///< number of its mask; -1: every token may come
  double uniform = 0;  ///< [0, 1): where in the kept tokens' weights, by rising token
};

/// How choosing ended.
enum class SampledState : uint32_t {
  kChosen,
  kUnusable,    ///< a logit is NaN or +inf, or all are -inf; or changes made one so
  kNothingLeft  ///< changes and mask leave no token
};

/// What a row gave.
struct SampledRow {
  SampledState state = SampledState::kChosen;
  int32_t token = 0;
  float logit = 0;    ///< the token's, unchanged
  float largest = 0;  ///< of the unchanged logits
  uint64_t sum = 0;   ///< of exp(logit - largest) * kWeightScale over the unchanged logits
  int32_t tokens[kMostAlternatives] = {};  ///< the likeliest, likeliest first
  float logits[kMostAlternatives] = {};
};

/// What a launch is given.
struct SamplingArguments {
  float* logits = nullptr;  ///< [.., vocab_size]; changed during the call only
  int32_t vocab_size = 0;
  const SamplingRow* rows = nullptr;
  LogitChange* changes = nullptr;   ///< each token of a row at most once
  const uint32_t* masks = nullptr;  ///< bit t of a mask: token t may come
  int32_t mask_words = 0;           ///< 32-bit words of each; tokens beyond them may not come
  SampledRow* sampled = nullptr;    ///< [count]
};

/// Chooses a token for each of `count` rows.
void sample(const SamplingArguments& arguments, int64_t count, Stream stream);

}  // namespace sluice::cuda
