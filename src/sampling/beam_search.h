#pragma once
// Beam search over one prompt: which beams go on with which tokens, which sequences have ended, and
// when the search has. The rules, ties and early stopping are those of Hugging Face's generate()
// with do_sample=False, so that its results are met. Holds token ids and scores, no KV: what a beam
// has in the cache is the caller's business. Pure, one thread.
#include <cstdint>
#include <span>
#include <vector>

#include "src/sampling/sampler.h"

namespace sluice::sampling {

/// A sequence that the search has ended.
struct Hypothesis {
  std::vector<Choice> choices;  ///< output tokens with their log-probabilities
  double score = 0;             ///< sum of the steps' scores / length ^ length_penalty
  bool is_stopped = false;      ///< by an end token; otherwise by length
};

class BeamSearch {
 public:
  /// `end_tokens`: they end a sequence. `most_tokens`: of the output, >= 1.
  BeamSearch(const SamplingParams& params, std::vector<int32_t> end_tokens, int64_t most_tokens);

  /// Candidates that each running beam has to bring: enough to go on when end tokens lead.
  size_t candidates_wanted() const noexcept { return candidates_wanted_; }
  /// Beams that run: 1 before the first step, then at most num_beams.
  size_t running() const noexcept { return running_.size(); }

  /// How a beam goes on.
  struct Step {
    size_t parent = 0;  ///< index of the running beam it continues
    int32_t token = 0;
  };
  /// One token further. `candidates` [running()]: Sampler::beam_candidates of each beam.
  /// `alternatives` [running()]: what Choice::top of the new tokens is to hold; or empty. Returns
  /// the beams that run from here on, best first; none: the search has ended.
  std::vector<Step> advance(std::span<const std::vector<BeamCandidate>> candidates,
                            std::span<const std::vector<TokenLogprob>> alternatives = {});

  /// The best that have ended, best first, at most num_beams.
  const std::vector<Hypothesis>& hypotheses() const noexcept { return ended_; }

 private:
  struct Beam {
    std::vector<Choice> choices;
    double score = 0;
  };
  double penalised(double score, int64_t length) const;
  void end(const Beam& parent, Choice choice, double score, bool is_stopped);
  bool can_improve() const;

  int beams_;
  double length_penalty_;
  EarlyStopping early_stopping_;
  std::vector<int32_t> end_tokens_;
  int64_t most_tokens_;
  size_t candidates_wanted_;
  int64_t length_ = 0;         // output tokens of every running beam
  std::vector<Beam> running_;  // best first
  std::vector<Hypothesis> ended_;
};

}  // namespace sluice::sampling
