#include "src/app/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice::app {

namespace {
class SequenceSource final : public RequestSource {
 public:
  explicit SequenceSource(std::vector<GenerationRequest> requests)
      : requests_(std::move(requests)) {}
  std::optional<GenerationRequest> next() override {
    if (at_ == requests_.size()) return std::nullopt;
    return requests_[at_++];
  }

 private:
  std::vector<GenerationRequest> requests_;
  size_t at_ = 0;
};

class ScoringSink final : public GenerationSink {
 public:
  ScoringSink(std::span<const ScoredSequence> sequences, const ScoreObserver& observer,
              const std::function<void(int64_t, int64_t)>& progress)
      : sequences_(sequences), observer_(observer), progress_(progress) {
    int64_t row = 0;
    for (const ScoredSequence& sequence : sequences) {
      first_rows_.push_back(row);
      row += std::max<int64_t>(static_cast<int64_t>(sequence.tokens.size()) - sequence.first_target,
                               0);
    }
  }
  bool on_token(uint64_t, const sampling::Choice&) override { return false; }
  void on_finish(uint64_t, FinishReason) override {
    if (progress_) progress_(++done_, static_cast<int64_t>(sequences_.size()));
  }
  void on_refused(uint64_t id, const std::string& message) override {
    throw Error(ErrorKind::kUser, fmt::format("sequence {}: {}", id, message));
  }
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override {
    const ScoredSequence& sequence = sequences_[id];
    const int64_t target = position + 1;
    if (target < sequence.first_target || target >= static_cast<int64_t>(sequence.tokens.size()))
      return;
    TokenScore score;
    score.sequence = id;
    score.row = first_rows_[id] + target - sequence.first_target;
    score.token = sequence.tokens[static_cast<size_t>(target)];
    score.nll = negative_log_likelihood(logits, score.token);
    score.is_top =
        logits[static_cast<size_t>(score.token)] >= *std::max_element(logits.begin(), logits.end());
    observer_(score, logits);
  }

 private:
  std::span<const ScoredSequence> sequences_;
  const ScoreObserver& observer_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::vector<int64_t> first_rows_;
  int64_t done_ = 0;
};

double log_sum_exp(std::span<const float> logits) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit} - maximum);
  return std::log(sum) + maximum;
}
}  // namespace

void score(Engine& engine, std::span<const ScoredSequence> sequences, const ScoreObserver& observer,
           const std::function<void(int64_t, int64_t)>& progress, std::stop_token cancel) {
  SequenceSource source(score_requests(sequences));
  ScoringSink sink(sequences, observer, progress);
  engine.generate(source, sink, cancel);
}

int64_t scored_tokens(std::span<const ScoredSequence> sequences) noexcept {
  int64_t count = 0;
  for (const ScoredSequence& sequence : sequences)
    count +=
        std::max<int64_t>(static_cast<int64_t>(sequence.tokens.size()) - sequence.first_target, 0);
  return count;
}

std::vector<GenerationRequest> score_requests(std::span<const ScoredSequence> sequences) {
  std::vector<GenerationRequest> requests;
  for (const ScoredSequence& sequence : sequences) {
    GenerationRequest& request = requests.emplace_back();
    request.id = requests.size() - 1;
    request.prompt = sequence.tokens;
    request.score_prompt = true;
  }
  return requests;
}

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  return log_sum_exp(logits) - double{logits[static_cast<size_t>(token)]};
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = log_sum_exp(p);
  const double q_norm = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = double{p[i]} - p_norm;
    sum += std::exp(log_p) * (log_p - (double{q[i]} - q_norm));
  }
  return std::max(sum, 0.0);
}

}  // namespace sluice::app
