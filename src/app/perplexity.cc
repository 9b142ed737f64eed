#include "src/app/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice::app {

namespace {
class WindowSource final : public RequestSource {
 public:
  explicit WindowSource(const std::vector<GenerationRequest>& windows) : windows_(windows) {}
  std::optional<GenerationRequest> next() override {
    if (at_ == windows_.size()) return std::nullopt;
    return windows_[at_++];
  }

 private:
  const std::vector<GenerationRequest>& windows_;
  size_t at_ = 0;
};

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit} - maximum);
  return std::log(sum) + maximum - logits[static_cast<size_t>(token)];
}

class ScoringSink final : public GenerationSink {
 public:
  ScoringSink(const std::vector<GenerationRequest>& windows,
              const std::function<void(int64_t, int64_t)>& progress)
      : windows_(windows), progress_(progress) {}
  bool on_token(uint64_t, const sampling::Choice&) override { return false; }
  void on_finish(uint64_t, FinishReason) override {
    if (progress_) progress_(++done_, static_cast<int64_t>(windows_.size()));
  }
  void on_refused(uint64_t id, const std::string& message) override {
    throw Error(ErrorKind::kUser, fmt::format("window {}: {}", id, message));
  }
  void on_logits(uint64_t id, int64_t position, std::span<const float> logits) override {
    const auto& prompt = windows_[id].prompt;
    if (position + 1 >= static_cast<int64_t>(prompt.size())) return;
    nll += negative_log_likelihood(logits, prompt[static_cast<size_t>(position + 1)]);
    ++scored;
  }
  double nll = 0;
  int64_t scored = 0;

 private:
  const std::vector<GenerationRequest>& windows_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int64_t done_ = 0;
};
}  // namespace

double Perplexity::value() const { return std::exp(mean_nll); }

std::vector<GenerationRequest> perplexity_windows(std::span<const int32_t> tokens,
                                                  std::optional<int32_t> bos, int64_t window) {
  std::vector<GenerationRequest> windows;
  const int64_t run = std::max<int64_t>(window - (bos ? 1 : 0), 1);
  for (int64_t at = 0; at < static_cast<int64_t>(tokens.size()); at += run) {
    const auto piece = tokens.subspan(
        static_cast<size_t>(at),
        static_cast<size_t>(std::min<int64_t>(run, static_cast<int64_t>(tokens.size()) - at)));
    GenerationRequest& request = windows.emplace_back();
    request.id = windows.size() - 1;
    if (bos) request.prompt.push_back(*bos);
    request.prompt.insert(request.prompt.end(), piece.begin(), piece.end());
    request.score_prompt = true;
  }
  return windows;
}

Perplexity perplexity(Engine& engine, std::span<const int32_t> tokens, std::optional<int32_t> bos,
                      int64_t window, const std::function<void(int64_t, int64_t)>& progress,
                      std::stop_token cancel) {
  const auto windows = perplexity_windows(tokens, bos, window);
  WindowSource source(windows);
  ScoringSink sink(windows, progress);
  engine.generate(source, sink, cancel);
  if (sink.scored == 0)
    throw Error(ErrorKind::kUser, "the text has no token to score", "give a longer text");
  return {sink.nll / static_cast<double>(sink.scored), sink.scored,
          static_cast<int64_t>(windows.size())};
}

}  // namespace sluice::app
