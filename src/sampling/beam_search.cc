#include "src/sampling/beam_search.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice::sampling {

BeamSearch::BeamSearch(const SamplingParams& params, std::vector<int32_t> end_tokens,
                       int64_t most_tokens)
    : beams_(params.num_beams),
      length_penalty_(params.length_penalty),
      early_stopping_(params.early_stopping),
      end_tokens_(std::move(end_tokens)),
      most_tokens_(most_tokens),
      // Of a beam's candidates every end token may lead: num_beams that go on are wanted beside.
      candidates_wanted_(std::max<size_t>(2, 1 + end_tokens_.size()) *
                         static_cast<size_t>(params.num_beams)),
      running_(1) {}

double BeamSearch::penalised(double score, int64_t length) const {
  return score / std::pow(static_cast<double>(length), length_penalty_);
}

// Keeps the best num_beams that have ended; among equals the earlier.
void BeamSearch::end(const Beam& parent, Choice choice, double score, bool is_stopped) {
  Hypothesis hypothesis{parent.choices, penalised(score, length_), is_stopped};
  hypothesis.choices.push_back(std::move(choice));
  const auto after =
      std::upper_bound(ended_.begin(), ended_.end(), hypothesis.score,
                       [](double value, const Hypothesis& other) { return value > other.score; });
  ended_.insert(after, std::move(hypothesis));
  if (ended_.size() > static_cast<size_t>(beams_)) ended_.pop_back();
}

// Whether a running beam may still beat the worst of those that have ended.
bool BeamSearch::can_improve() const {
  if (ended_.size() < static_cast<size_t>(beams_)) return true;
  if (early_stopping_ == EarlyStopping::kAtOnce) return false;
  // A positive penalty favours length: at best the beam gets as long as it may for nothing.
  const bool may_get_longer = early_stopping_ == EarlyStopping::kNever && length_penalty_ > 0;
  return penalised(running_.front().score, may_get_longer ? most_tokens_ : length_) >
         ended_.back().score;
}

std::vector<BeamSearch::Step> BeamSearch::advance(
    std::span<const std::vector<BeamCandidate>> candidates,
    std::span<const std::vector<TokenLogprob>> alternatives) {
  SLUICE_ASSERT(candidates.size() == running_.size(), "every running beam brings candidates");
  struct Way {
    size_t parent;
    BeamCandidate candidate;
    double score;
  };
  std::vector<Way> ways;
  for (size_t beam = 0; beam < running_.size(); ++beam)
    for (const BeamCandidate& one : candidates[beam])
      ways.push_back({beam, one, running_[beam].score + static_cast<double>(one.score)});
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.score > b.score; });
  if (ways.size() > candidates_wanted_) ways.resize(candidates_wanted_);

  ++length_;
  const bool is_last = length_ >= most_tokens_;
  std::vector<Beam> next;
  std::vector<Step> steps;
  for (size_t rank = 0; rank < ways.size(); ++rank) {
    const Way& way = ways[rank];
    const Beam& parent = running_[way.parent];
    Choice choice{way.candidate.token, way.candidate.logprob, {}};
    if (!alternatives.empty()) choice.top = alternatives[way.parent];
    const bool is_stopped =
        std::find(end_tokens_.begin(), end_tokens_.end(), way.candidate.token) != end_tokens_.end();
    if (is_stopped || is_last) {
      // Of those behind the first num_beams only the running ones matter.
      if (rank < static_cast<size_t>(beams_)) end(parent, std::move(choice), way.score, is_stopped);
      continue;
    }
    if (next.size() == static_cast<size_t>(beams_)) continue;
    Beam& beam = next.emplace_back(Beam{parent.choices, way.score});
    beam.choices.push_back(std::move(choice));
    steps.push_back({way.parent, way.candidate.token});
  }
  running_ = std::move(next);
  if (!running_.empty() && can_improve()) return steps;
  running_.clear();
  return {};
}

}  // namespace sluice::sampling
