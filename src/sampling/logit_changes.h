#pragma once
// What a request's bias, penalties, DRY and min_tokens do to the logits of a row, as a list of the
// few tokens they touch: applied by the sampler on the host, or sent to where the logits are. What
// an object holds between calls is scratch; one a thread.
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/sampling/dry.h"
#include "src/sampling/params.h"

namespace sluice::sampling {

/// Of one token's logit, in this order.
struct LogitChange {
  int32_t token = 0;
  float bias = 0;        ///< added
  float repetition = 1;  ///< divides what is above zero, multiplies what is below
  float penalty = 0;     ///< subtracted: of presence, frequency and DRY
  bool is_banned = false;

  float apply(float logit) const noexcept {
    logit += bias;
    logit = logit < 0 ? logit * repetition : logit / repetition;
    return is_banned ? -std::numeric_limits<float>::infinity() : logit - penalty;
  }
};

class LogitChanges {
 public:
  /// Every token at most once; valid until the next call. Tokens of the prompt, the output and the
  /// stop ids outside the vocabulary are passed over. `breakers`: of DRY;
  /// null: there are none.
  /// Errors: kUser when logit_bias names a token outside the vocabulary.
  std::span<const LogitChange> find(const SamplingParams& params, std::span<const int32_t> prompt,
                                    std::span<const int32_t> output,
                                    std::span<const int32_t> eos_token_ids, int64_t vocab_size,
                                    const DryBreakers* breakers = nullptr);
  /// Bytes held now.
  int64_t bytes() const noexcept;

 private:
  LogitChange& of(int32_t token);

  Repeats repeats_;
  std::vector<LogitChange> changes_;
  std::vector<int32_t> places_;  // [vocab_size] 1 + index in changes_; zero between calls
};

}  // namespace sluice::sampling
