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

Progress::~Progress() {
  if (has_shown_ && is_terminal()) std::fprintf(stderr, "\n");
}

void Progress::update(int64_t done, int64_t total, const std::string& amount,
                      const std::string& rate) {
  const auto now = Clock::now();
  if (done_at_start_ < 0) {
    done_at_start_ = done;
    started_ = last_ = now;
  }
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  const double since = std::chrono::duration<double>(now - last_).count();
  // The first line within a second; on a log every ten.
  const double pause = is_terminal() ? 0.2 : has_shown_ ? 10.0 : 0.9;
  if (since < pause) return;
  last_ = now;
  has_shown_ = true;
  std::string line = fmt::format("{}: {} {}", what_, amount, rate);
  if (done > done_at_start_ && total > done)
    line += fmt::format(", {} left", format_seconds(elapsed * static_cast<double>(total - done) /
                                                    static_cast<double>(done - done_at_start_)));
  if (is_terminal())
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace sluice::tools
