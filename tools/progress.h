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

  /// Shows "<what>: <amount> <rate>, <time left>" when it is time for a line again. The clock
  /// starts with the first call: what is done by then says nothing of the time left.
  void update(int64_t done, int64_t total, const std::string& amount, const std::string& rate);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point started_;
  Clock::time_point last_;
  int64_t done_at_start_ = -1;
  bool has_shown_ = false;
};

}  // namespace sluice::tools
