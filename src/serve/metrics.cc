#include "src/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::serve {

namespace {
// Up to an hour: a model that streams from disk takes that long.
const std::vector<double> kShort = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0,
                                    20.0,  40.0,  80.0, 160,  320,  640,  1280, 3600};
const std::vector<double> kLong = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30,  40,  50,  60, 120, 240, 480, 960, 1920, 3600};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}  // namespace

void metric_head(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string model_label(const std::string& name) {
  std::string escaped;
  for (const char c : name) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return fmt::format("model_name=\"{}\"", escaped);
}

std::string join_metrics(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> metrics;  // head and lines, in order
  for (const std::string& text : texts) {
    std::string head, lines;
    const auto put = [&] {
      const auto same = std::find_if(metrics.begin(), metrics.end(),
                                     [&](const auto& one) { return one.first == head; });
      if (same != metrics.end())
        same->second += lines;
      else if (!head.empty() || !lines.empty())
        metrics.emplace_back(head, lines);
      head.clear();
      lines.clear();
    };
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      const std::string line = text.substr(at, end - at);
      if (line.starts_with('#') && !lines.empty()) put();
      (line.starts_with('#') ? head : lines) += line;
      at = end;
    }
    put();
  }
  std::string out;
  for (const auto& [head, lines] : metrics) out += head + lines;
  return out;
}

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
  ++count_;
}

void Histogram::write(const std::string& name, const std::string& labels, std::string& out) const {
  int64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  out +=
      fmt::format("{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3}\n{0}_count{{{1}}} {2}\n",
                  name, labels, count_, sum_);
}

Metrics::Metrics(const std::string& model)
    : labels_(model_label(model)),
      first_token_(kShort),
      token_gap_(kShort),
      end_to_end_(kLong),
      queue_(kLong),
      prefill_(kLong),
      decode_(kLong),
      prompt_tokens_(kTokens),
      output_tokens_(kTokens),
      pass_tokens_(kTokens) {}

void Metrics::finished(const RequestTimes& times) {
  const MutexLock lock(mutex_);
  ++finished_[times.finish_reason];
  if (times.started < 0) return;
  queue_.observe(times.started);
  prompt_tokens_.observe(static_cast<double>(times.prompt_tokens));
  output_tokens_.observe(static_cast<double>(times.output_tokens));
  end_to_end_.observe(times.finished);
  const double run = times.finished - times.started;
  recent_seconds_ = recent_seconds_ == 0 ? run : recent_seconds_ + (run - recent_seconds_) / 8;
  if (times.first_token < 0) return;
  first_token_.observe(times.first_token);
  prefill_.observe(times.first_token - times.started);
  decode_.observe(times.finished - times.first_token);
}

void Metrics::started(int64_t prompt_tokens) {
  const MutexLock lock(mutex_);
  all_prompt_tokens_ += prompt_tokens;
}

void Metrics::generated(double gap) {
  const MutexLock lock(mutex_);
  ++all_output_tokens_;
  if (gap >= 0) token_gap_.observe(gap);
}

void Metrics::rejected() {
  const MutexLock lock(mutex_);
  ++rejected_;
}

void Metrics::passed(const PassReport& report, const std::vector<double>& first_tokens) {
  const MutexLock lock(mutex_);
  OfClass& of = classes_[report.pass_class];
  of.from_tokens = std::max<int64_t>(report.from_tokens, 1);
  ++of.passes;
  of.prefill_tokens += report.prefill_tokens;
  of.decode_tokens += report.decode_tokens;
  of.seconds += report.seconds;
  of.first_tokens += static_cast<int64_t>(first_tokens.size());
  for (const double seconds : first_tokens) of.first_token_seconds += seconds;
  last_ = report;
  pass_seconds_ += report.seconds;
  pass_tokens_.observe(static_cast<double>(report.prefill_tokens + report.decode_tokens));
}

double Metrics::recent_seconds() const {
  const MutexLock lock(mutex_);
  return recent_seconds_;
}

// Who computes differs between classes of passes, and so do their times.
void Metrics::write_classes(std::string& out) const {
  const auto each = [&](const char* name, const char* suffix,
                        const auto& value_of) SLUICE_REQUIRES(mutex_) {
    for (const auto& [number, of] : classes_)
      out += fmt::format("{}{}{{{},pass_class=\"{}\",from_tokens=\"{}\"}} {}\n", name, suffix,
                         labels_, number, of.from_tokens, value_of(of));
  };
  const auto counter = [&](const char* name, const char* help, const auto& value_of)
                           SLUICE_REQUIRES(mutex_) {
                             metric_head(out, name, "counter", help);
                             each(name, "", value_of);
                           };
  counter("sluice:pass_class_passes_total", "Passes that were computed as this class.",
          [](const OfClass& of) { return of.passes; });
  counter("sluice:pass_class_seconds_total", "Seconds of these passes.",
          [](const OfClass& of) { return of.seconds; });
  counter("sluice:pass_class_prompt_tokens_total", "Prompt tokens computed in them.",
          [](const OfClass& of) { return of.prefill_tokens; });
  counter("sluice:pass_class_decode_tokens_total", "Tokens decoded in them.",
          [](const OfClass& of) { return of.decode_tokens; });
  const char* first = "sluice:pass_class_time_to_first_token_seconds";
  metric_head(out, first, "summary",
              "From arrival to a first token that came in a pass of this class.");
  each(first, "_sum", [](const OfClass& of) { return of.first_token_seconds; });
  each(first, "_count", [](const OfClass& of) { return of.first_tokens; });
}

std::string Metrics::text(int64_t running, int64_t waiting) const {
  const MutexLock lock(mutex_);
  std::string out;
  const auto one = [&](const char* name, const char* type, const char* help, double value) {
    metric_head(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, labels_, value);
  };
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  one("vllm:num_requests_running", "gauge", "Requests that are computed.", count(running));
  one("vllm:num_requests_waiting", "gauge", "Requests that wait to be computed.", count(waiting));
  // Who is taken back after the last pass has given its pages up since.
  const int64_t pages_used = running > 0 ? last_.kv_pages_used : 0;
  one("vllm:kv_cache_usage_perc", "gauge", "Share of the KV pages in use; 1 is all.",
      last_.kv_pages > 0 ? count(pages_used) / count(last_.kv_pages) : 0);
  one("sluice:kv_pages", "gauge", "KV pages that there are; 0 before the first pass.",
      count(last_.kv_pages));
  one("sluice:kv_pages_used", "gauge", "KV pages of the requests that are computed.",
      count(pages_used));
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked for in the prefix cache.",
      count(last_.prefix_queried_tokens));
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
      count(last_.prefix_hit_tokens));
  one("vllm:num_preemptions_total", "counter", "Sequences that gave their KV pages up for others.",
      count(last_.preemptions));
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that have started.",
      count(all_prompt_tokens_));
  one("vllm:generation_tokens_total", "counter",
      "Tokens generated so far, also for requests that still run.", count(all_output_tokens_));
  one("sluice:kv_pages_saved_total", "counter", "KV pages copied to the swap space.",
      count(last_.saved_pages));
  one("sluice:kv_pages_restored_total", "counter",
      "KV pages copied back from the swap space instead of being computed again.",
      count(last_.restored_pages));
  one("sluice:experts_asked_total", "counter",
      "Experts that small passes asked for, of a mixture that is larger than memory.",
      count(last_.experts_asked));
  one("sluice:experts_found_total", "counter", "Of these, experts that were in memory.",
      count(last_.experts_found));
  one("sluice:experts_guessed_total", "counter",
      "Experts that were loaded before their layer asked for them.", count(last_.experts_guessed));
  one("sluice:guesses_right_total", "counter", "Of these, experts that were asked for then.",
      count(last_.guesses_right));
  const auto by_lane = [&](const char* name, const char* help, const auto& value_of)
                           SLUICE_REQUIRES(mutex_) {
                             metric_head(out, name, "counter", help);
                             const LaneTable& machine = *last_.machine;
                             for (size_t i = 0; i < machine.size(); ++i)
                               out += fmt::format("{}{{{},lane=\"{}\"}} {}\n", name, labels_,
                                                  machine[i].name, value_of(last_.lanes[i]));
                           };
  by_lane("sluice:lane_bytes_total", "Bytes that a lane has moved.",
          [](const PassReport::LaneReport& lane) { return static_cast<double>(lane.bytes); });
  by_lane("sluice:lane_busy_seconds_total", "Seconds with a task of the lane running.",
          [](const PassReport::LaneReport& lane) { return lane.busy_seconds; });
  one("sluice:passes_total", "counter", "Trips through the model.", count(last_.pass));
  one("sluice:pass_seconds_total", "counter", "Seconds of these trips.", pass_seconds_);
  write_classes(out);
  one("sluice:requests_rejected_total", "counter",
      "Requests answered with 429: the queue was full.", count(rejected_));
  metric_head(out, "vllm:request_success_total", "counter", "Requests that have ended, by reason.");
  for (const auto& [reason, number] : finished_)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_,
                       reason, number);
  const auto histogram = [&](const char* name, const char* help, const Histogram& of) {
    metric_head(out, name, "histogram", help);
    of.write(name, labels_, out);
  };
  histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", first_token_);
  histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", token_gap_);
  histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", end_to_end_);
  histogram("vllm:request_queue_time_seconds", "From arrival to the start.", queue_);
  histogram("vllm:request_prefill_time_seconds", "From the start to the first token.", prefill_);
  histogram("vllm:request_decode_time_seconds", "From the first token to the end.", decode_);
  histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens_);
  histogram("vllm:request_generation_tokens", "Tokens generated for a request.", output_tokens_);
  histogram("vllm:iteration_tokens_total", "Tokens computed in one pass.", pass_tokens_);
  return out;
}

}  // namespace sluice::serve
