#pragma once
// Chooses the next token of one sequence from the model's logits. Holds no state but its
// parameters: the random numbers of output position i depend on (seed, i) only, so neither batch
// composition nor pausing a sequence changes its tokens; what Mirostat learns goes from each Choice
// into the next History. Order: logit bias, repetition penalty, presence and frequency penalty,
// DRY, min_tokens, the mask of a guide, temperature, top-n-sigma, top-k, typical, top-p, min-p,
// XTC; or after temperature Mirostat alone. Each filter sees the probabilities of what is left; the
// sets that are kept are those of Hugging Face's processors where it has them. Temperature 0 takes
// the likeliest, whatever filters say. Thread-safe: one Workspace a thread.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/sampling/candidates.h"
#include "src/sampling/dry.h"
#include "src/sampling/filters.h"
#include "src/sampling/logit_changes.h"
#include "src/sampling/params.h"

namespace sluice::sampling {

/// What the sequence holds so far. Ids outside the vocabulary are ignored by the penalties.
struct History {
  std::span<const int32_t> prompt;
  std::span<const int32_t> output;  // its length is the position that is being sampled
  /// Bit t of the words: token t may come. Empty: every token may.
  std::span<const uint64_t> allowed = {};
  double surprise_drift = 0;  ///< Mirostat's: of the choice before; 0 at first
};

/// A token with the logarithm of its probability.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;

  bool operator==(const TokenLogprob&) const = default;
};

/// A chosen token.
struct Choice {
  int32_t token = 0;
  float logprob = 0;  // log-softmax of the unmodified logits; NaN when params.logprobs is -1
  std::vector<TokenLogprob>
      top;                    // params.logprobs likeliest of the unmodified logits, likeliest first
  double surprise_drift = 0;  ///< Mirostat's bound of bits is 2 tau + this, for the next token
};

/// A token that a beam may go on with.
struct BeamCandidate {
  int32_t token = 0;
  float score = 0;    // log-softmax of the logits, after bias, penalties and masks
  float logprob = 0;  // log-softmax of the unmodified logits
};

/// Buffers of about 28 bytes x vocab_size (44 with typical_p; DRY adds 8 x context), kept between
/// calls and shared by all sequences of a thread.
class Workspace {
 public:
  /// Bytes held now.
  int64_t bytes() const noexcept;

 private:
  friend class Sampler;
  std::vector<float> adjusted_;   // [vocab_size] logits after bias, penalties and masks
  LogitChanges changes_;          // bias, penalties, min_tokens
  std::vector<float> selection_;  // top-k
  std::vector<int32_t> tokens_;   // what is kept, by rising id
  std::vector<float> weights_;    // [tokens_] exp((logit - max) / temperature)
  std::vector<Ranked> ranked_;    // top-p, Mirostat
  std::vector<Shifted> shifted_;  // typical
  std::vector<float> logprobs_;   // [vocab_size] of beams
  double mass_ = 0;               // sum of the weights before filters drop any
};

class Sampler {
 public:
  /// `eos_token_ids`: what min_tokens keeps away, beside stop_token_ids. Errors: as validate().
  Sampler(SamplingParams params, std::vector<int32_t> eos_token_ids);

  /// The token of position history.output.size().  logits [vocab_size] f32, of the last position.
  /// Allocates nothing once the workspace has grown, except `top`.
  /// Errors: kFile when a logit is NaN or +inf (naming the token) or all are -inf; kUser when
  /// bias and masks leave no token, or logit_bias names a token outside the vocabulary.
  Choice pick(std::span<const float> logits, const History& history, Workspace& workspace) const;

  /// The probabilities [vocab_size] that pick() draws from; 0 for tokens that are not kept. Errors:
  /// as pick().
  std::vector<float> distribution(std::span<const float> logits, const History& history,
                                  Workspace& workspace) const;

  /// The `count` tokens of highest score, best first, fewer when masks leave fewer: how beam search
  /// goes on. As Hugging Face does it, bias and penalties change the log-softmax, not the logits;
  /// temperature and filters play no part. Errors: as pick().
  std::vector<BeamCandidate> beam_candidates(std::span<const float> logits, const History& history,
                                             size_t count, Workspace& workspace) const;

  /// What pick() does to single logits first, for who picks where the logits are. Valid until the
  /// workspace is used again. Errors: kUser, of logit_bias.
  std::span<const LogitChange> changes(const History& history, int64_t vocab_size,
                                       Workspace& workspace) const;

  const SamplingParams& params() const noexcept { return params_; }
  const std::vector<int32_t>& eos_token_ids() const noexcept { return eos_token_ids_; }

 private:
  std::span<const float> adjust(std::span<const float> logits, const History& history,
                                Workspace& workspace) const;
  double keep(std::span<const float> adjusted, float max_logit, const History& history,
              Workspace& workspace) const;
  void filter(Kept& kept, size_t position, Workspace& workspace) const;
  double drift_after(double distance, double mass, const History& history) const;

  SamplingParams params_;
  std::shared_ptr<const DryBreakers> breakers_;
  std::vector<int32_t> eos_token_ids_;
};

/// A token that is given, not chosen, with its log-softmax under `logits` and the `alternatives`
/// likeliest. Logits that no model should give (NaN, +inf) give NaN.
Choice score_token(std::span<const float> logits, int32_t token, int alternatives);

/// distribution() of a sampler made for the occasion. Errors: as validate() and Sampler::pick().
std::vector<float> distribution(std::span<const float> logits, const SamplingParams& params,
                                const History& history,
                                std::span<const int32_t> eos_token_ids = {});

}  // namespace sluice::sampling
