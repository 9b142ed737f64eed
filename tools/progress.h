#pragma once
// One line of progress on standard error: redrawn on a terminal, a plain line now and then
// elsewhere.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice::tools {

/// Of work of which `came` was done in `seconds` and `missing` is left: how long that takes.
/// Nothing where it is too early to say, or nothing is missing.
std::optional<double> seconds_left(double seconds, int64_t came, int64_t missing);

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows "<what>: <amount> <rate>, <time left>" when it is time for a line again. The time left
  /// follows from what was done since the first call: what came before (a profile, an earlier run's
  /// share) says nothing of this work's rate.
  void update(int64_t done, int64_t total, const std::string& amount, const std::string& rate);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point last_;     // shown; at first begun
  Clock::time_point started_;  // of the work: when the first update came
  int64_t started_with_ = -1;  // done by then; -1: none has come
  bool has_shown_ = false;
};

}  // namespace sluice::tools
