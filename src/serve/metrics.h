#pragma once
// What a server counts, in Prometheus' text form. Names are vLLM's where the meaning is the same
// (vllm:...), so that dashboards work; the rest is sluice:... Thread safe.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/passes/sequence.h"

namespace sluice::serve {

/// What stands before a metric's lines in the text format of Prometheus: `type` is "counter",
/// "gauge", "histogram" or "summary".
void metric_head(std::string& out, const char* name, const char* type, const char* help);

/// model_name="NAME", escaped as labels are.
std::string model_label(const std::string& name);
/// Texts of several models as one: each metric's head once, and all of its lines behind it.
std::string join_metrics(const std::vector<std::string>& texts);

/// Counts by upper bounds, as Prometheus accumulates them.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  /// Appends the lines of `name`.
  void write(const std::string& name, const std::string& labels, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // by the first bound that is not below
  double sum_ = 0;
  int64_t count_ = 0;
};

/// Times of one finished request, in seconds from its arrival; negative: did not come to it.
struct RequestTimes {
  double started = -1;
  double first_token = -1;
  double finished = -1;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  std::string finish_reason;
};

class Metrics {
 public:
  explicit Metrics(const std::string& model);

  void finished(const RequestTimes& times);
  /// A request has started, with so many tokens of a prompt.
  void started(int64_t prompt_tokens);
  /// A request has one token more; `gap`: seconds since the one before it, below 0: the first.
  void generated(double gap);
  void rejected();
  /// `first_tokens`: of the requests whose first token came in it, seconds from arrival.
  void passed(const PassReport& report, const std::vector<double>& first_tokens = {});
  /// Mean seconds of a request from start to end, of late; 0 before the first.
  double recent_seconds() const;

  /// `running`: requests that have started and not ended; `waiting`: that have not started.
  std::string text(int64_t running, int64_t waiting) const;
  /// Of each line: model_label() of the model.
  const std::string& labels() const noexcept { return labels_; }

 private:
  struct OfClass {
    int64_t from_tokens = 0;
    int64_t passes = 0, prefill_tokens = 0, decode_tokens = 0, first_tokens = 0;
    double seconds = 0, first_token_seconds = 0;
  };
  void write_classes(std::string& out) const SLUICE_REQUIRES(mutex_);

  const std::string labels_;
  mutable Mutex mutex_;
  PassReport last_ SLUICE_GUARDED_BY(mutex_);
  Histogram first_token_ SLUICE_GUARDED_BY(mutex_);
  Histogram token_gap_ SLUICE_GUARDED_BY(mutex_);
  Histogram end_to_end_ SLUICE_GUARDED_BY(mutex_);
  Histogram queue_ SLUICE_GUARDED_BY(mutex_);
  Histogram prefill_ SLUICE_GUARDED_BY(mutex_);
  Histogram decode_ SLUICE_GUARDED_BY(mutex_);
  Histogram prompt_tokens_ SLUICE_GUARDED_BY(mutex_);
  Histogram output_tokens_ SLUICE_GUARDED_BY(mutex_);
  Histogram pass_tokens_ SLUICE_GUARDED_BY(mutex_);
  std::map<size_t, OfClass> classes_ SLUICE_GUARDED_BY(mutex_);        // those that ran
  std::map<std::string, int64_t> finished_ SLUICE_GUARDED_BY(mutex_);  // by reason
  int64_t all_prompt_tokens_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t all_output_tokens_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t rejected_ SLUICE_GUARDED_BY(mutex_) = 0;
  double pass_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
  double recent_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::serve
