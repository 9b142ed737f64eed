#pragma once
// How likely a model holds given tokens: the sequences are run as prompts whose logits are kept
// nowhere, only looked at. Perplexity, next-token accuracy and comparisons of two configurations
// are sums over what score() reports.
#include <functional>
#include <optional>
#include <vector>

#include "src/engine/engine.h"

namespace sluice::app {

/// tokens[first_target ..] are scored, each from all tokens before it; first_target >= 1.
struct ScoredSequence {
  std::vector<int32_t> tokens;
  int64_t first_target = 1;
};

/// How likely one given token was.
struct TokenScore {
  size_t sequence = 0;
  int64_t row = 0;  ///< number of the token among all that are scored, sequence by sequence
  int32_t token = 0;
  double nll = 0;       ///< negative log-likelihood, natural logarithm
  bool is_top = false;  ///< no other token has a higher logit
};

/// Called for every scored token, in any order; the logits are those that it was scored with.
using ScoreObserver = std::function<void(const TokenScore& score, std::span<const float> logits)>;

/// Errors: those of Engine::generate; kUser when a sequence is refused.
void score(Engine& engine, std::span<const ScoredSequence> sequences, const ScoreObserver& observer,
           const std::function<void(int64_t done, int64_t total)>& progress = {},
           std::stop_token cancel = {});

/// Tokens that score() reports.
int64_t scored_tokens(std::span<const ScoredSequence> sequences) noexcept;
/// The requests that score() runs, for planning a workload.
std::vector<GenerationRequest> score_requests(std::span<const ScoredSequence> sequences);

/// Negative log-likelihood of `token` under softmax(logits), f64 sums.
double negative_log_likelihood(std::span<const float> logits, int32_t token);
/// Kullback-Leibler divergence of softmax(q) from softmax(p), in nats: sum p (log p - log q).
double kl_divergence(std::span<const float> p, std::span<const float> q);

}  // namespace sluice::app
