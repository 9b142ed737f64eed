#pragma once
// One line of progress on standard error: redrawn on a terminal, a plain line now and then
// elsewhere.
#include <chrono>
#include <cstdint>
#include <string>

namespace sluice::tools {

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows "<what>: <amount> <rate>, <time left>" when it is time for a line again. done = total
  /// ends the line.
  void update(int64_t done, int64_t total, const std::string& amount, const std::string& rate);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_ = started_;
  bool has_shown_ = false;
};

}  // namespace sluice::tools
