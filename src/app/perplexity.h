#pragma once
// Perplexity of a token sequence: exp of the mean negative log-likelihood (natural log) over every
// token. Without a stride the tokens are cut into runs of window - 1; each run, with begin-of-text
// in front, is one window; windows share nothing; every token of a run is scored, its first one
// from begin-of-text. With a stride a window begins every `stride` tokens, and only tokens that no
// window before it held are scored: each from at least window - 1 - stride tokens but those of the
// first window.
#include <functional>

#include "src/app/scoring.h"

namespace sluice::app {

struct Perplexity {
  double mean_nll = 0;
  int64_t scored_tokens = 0;
  int64_t windows = 0;
  double value() const;
};

/// `bos`: what stands in front of each window; nothing: the first token of each run (with a stride:
/// of the text) is not scored. `observer` may be empty. Errors: kUser when there is nothing to
/// score; those of score().
Perplexity perplexity(Engine& engine, std::span<const ScoredSequence> windows,
                      const ScoreObserver& observer = {},
                      const std::function<void(int64_t done, int64_t total)>& progress = {},
                      std::stop_token cancel = {});

/// stride 0: windows that share nothing.
std::vector<ScoredSequence> perplexity_windows(std::span<const int32_t> tokens,
                                               std::optional<int32_t> bos, int64_t window,
                                               int64_t stride = 0);

}  // namespace sluice::app
