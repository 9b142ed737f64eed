#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "src/base/bytes.h"

namespace sluice::tools {

namespace {
bool is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  return terminal;
}
}  // namespace

std::optional<double> seconds_left(double seconds, int64_t came, int64_t missing) {
  constexpr double kLeastSeconds = 0.5, kLeastShare = 0.01;
  const auto all = static_cast<double>(came) + static_cast<double>(missing);
  if (missing <= 0 || seconds < kLeastSeconds || static_cast<double>(came) < kLeastShare * all)
    return std::nullopt;
  return seconds * static_cast<double>(missing) / static_cast<double>(came);
}

Progress::~Progress() {
  if (has_shown_ && is_terminal()) std::fprintf(stderr, "\n");
}

void Progress::update(int64_t done, int64_t total, const std::string& amount,
                      const std::string& rate) {
  const auto now = Clock::now();
  if (started_with_ < 0) {
    started_ = last_ = now;
    started_with_ = done;
  }
  const double since = std::chrono::duration<double>(now - last_).count();
  // The first line within a second; on a log every ten.
  const double pause = is_terminal() ? 0.2 : has_shown_ ? 10.0 : 0.9;
  if (since < pause) return;
  last_ = now;
  has_shown_ = true;
  std::string line = fmt::format("{}: {} {}", what_, amount, rate);
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  if (const auto left = seconds_left(elapsed, done - started_with_, total - done))
    line += ", " + format_seconds(*left) + " left";
  if (is_terminal())
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace sluice::tools
