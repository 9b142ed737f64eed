#include "src/app/perplexity.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice::app {

double Perplexity::value() const { return std::exp(mean_nll); }

std::vector<ScoredSequence> perplexity_windows(std::span<const int32_t> tokens,
                                               std::optional<int32_t> bos, int64_t window,
                                               int64_t stride) {
  std::vector<ScoredSequence> windows;
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t run = std::max<int64_t>(window - (bos ? 1 : 0), 1);
  const int64_t step = stride > 0 ? std::min(stride, run) : run;
  int64_t scored = 0;  // of the text, so far
  for (int64_t at = 0; scored < count; at += step) {
    const int64_t end = std::min(at + run, count);
    ScoredSequence& sequence = windows.emplace_back();
    if (bos) sequence.tokens.push_back(*bos);
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin() + at, tokens.begin() + end);
    sequence.first_target = std::max<int64_t>(scored - at + (bos ? 1 : 0), 1);
    scored = end;
  }
  return windows;
}

Perplexity perplexity(Engine& engine, std::span<const ScoredSequence> windows,
                      const ScoreObserver& observer,
                      const std::function<void(int64_t, int64_t)>& progress,
                      std::stop_token cancel) {
  Perplexity result;
  double nll = 0;
  score(
      engine, windows,
      [&](const TokenScore& one, std::span<const float> logits) {
        nll += one.nll;
        ++result.scored_tokens;
        if (observer) observer(one, logits);
      },
      progress, cancel);
  if (result.scored_tokens == 0)
    throw Error(ErrorKind::kUser, "the text has no token to score", "give a longer text");
  result.mean_nll = nll / static_cast<double>(result.scored_tokens);
  result.windows = static_cast<int64_t>(windows.size());
  return result;
}

}  // namespace sluice::app
