#pragma once
// Perplexity of a token sequence: exp of the mean negative log-likelihood (natural log) over every
// token. The tokens are cut into runs of window - 1; each run, with begin-of-text in front, is one
// window; windows share nothing; every token of a run is scored, its first one from begin-of-text.
#include <functional>

#include "src/engine/engine.h"

namespace sluice::app {

struct Perplexity {
  double mean_nll = 0;
  int64_t scored_tokens = 0;
  int64_t windows = 0;
  double value() const;
};

/// `bos`: what stands in front of each window; nothing: the first token of each run is not scored.
/// Errors: kUser when there is nothing to score; those of Engine::generate.
Perplexity perplexity(Engine& engine, std::span<const int32_t> tokens, std::optional<int32_t> bos,
                      int64_t window,
                      const std::function<void(int64_t done, int64_t total)>& progress = {},
                      std::stop_token cancel = {});

/// Requests that score the windows, for planning a workload.
std::vector<GenerationRequest> perplexity_windows(std::span<const int32_t> tokens,
                                                  std::optional<int32_t> bos, int64_t window);

}  // namespace sluice::app
