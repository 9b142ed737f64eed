#include "tools/output.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "src/base/error.h"
#include "src/base/mutex.h"
#include "tools/flag_words.h"

namespace sluice::tools {

void print_json(const nlohmann::ordered_json& json) {
  std::printf("%s\n",
              json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

namespace {
std::atomic<bool> is_in_line = false;  // write_text's last letter was no line end
std::atomic<int> first_failure = 0;    // errno of the first write that came to nothing

// Do both outputs go to one place?
bool share_a_place() {
  struct stat out {
  }, err{};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}
}  // namespace

bool status_is_redrawn() {
  static const bool is_terminal = isatty(STDERR_FILENO) != 0;
  return is_terminal;
}

namespace {
Mutex status_mutex;  // held while a line is written, never longer
bool has_status SLUICE_GUARDED_BY(status_mutex) = false;

int terminal_width() {
  struct winsize size {};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}
}  // namespace

void show_status(std::string_view line) {
  const MutexLock lock(status_mutex);
  if (!status_is_redrawn()) {
    std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
    return;
  }
  if (is_in_line && share_a_place()) return;  // an answer stands there
  // A line that wraps could not be taken back.
  const auto length = std::min(line.size(), static_cast<size_t>(terminal_width() - 1));
  std::fprintf(stderr, "\r\x1b[K%.*s", static_cast<int>(length), line.data());
  std::fflush(stderr);
  has_status = true;
}

void clear_status() {
  const MutexLock lock(status_mutex);
  if (!std::exchange(has_status, false)) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

void tell(std::string_view line) {
  std::fprintf(stderr, "%ssluice: %s\n", message_start(), in_flags(line).c_str());
}

void write_text(std::string_view text) {
  clear_status();
  errno = 0;
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&  // it may hold zero bytes
      std::fflush(stdout) == 0;
  int none = 0;
  if (!is_written) first_failure.compare_exchange_strong(none, errno);
  if (!text.empty()) is_in_line = text.back() != '\n';
}

const char* message_start() {
  clear_status();
  return is_in_line.exchange(false) && share_a_place() ? "\n" : "";
}

void check_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const int failure = first_failure != 0 ? first_failure.load() : errno;
  const std::string why =
      failure ? std::generic_category().message(failure) : "an earlier write came to nothing";
  throw Error(ErrorKind::kFile, "standard output: " + why,
              "make room, or keep what reads it open to the end");
}

}  // namespace sluice::tools
