#include "tools/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/base/error.h"

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

void write_text(std::string_view text) {
  errno = 0;
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&  // it may hold zero bytes
      std::fflush(stdout) == 0;
  int none = 0;
  if (!is_written) first_failure.compare_exchange_strong(none, errno);
  if (!text.empty()) is_in_line = text.back() != '\n';
}

const char* message_start() { return is_in_line.exchange(false) && share_a_place() ? "\n" : ""; }

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
