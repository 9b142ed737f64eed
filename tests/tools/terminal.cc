#include "tests/tools/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>

namespace sluice::testing {

namespace {
constexpr int kLongestWaitMs = 240'000;  // below ctest's own limit; for sanitizers under load

// What runs between fork and exec: only calls that are safe there.
[[noreturn]] void become(const std::vector<char*>& words, const std::vector<char*>& variables) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE}) signal(number, SIG_DFL);
  execve(words[0], words.data(), variables.data());
  _exit(127);
}
}  // namespace

Terminal::Terminal(const std::vector<std::string>& arguments, const Command::Options& options) {
  std::vector<std::string> words{SLUICE_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = Command::environment(options.environment);
  const std::vector<char*> word_pointers = Command::pointers(words);
  const std::vector<char*> variable_pointers = Command::pointers(variables);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = 200;
  pid_ = forkpty(&fd_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "forkpty");
  if (pid_ == 0) become(word_pointers, variable_pointers);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
  // As terminals of people do: what is typed ahead is erased by characters.
  termios mode{};
  if (tcgetattr(fd_, &mode) == 0) {
    mode.c_iflag |= IUTF8;
    tcsetattr(fd_, TCSANOW, &mode);
  }
}

Terminal::~Terminal() {
  if (!has_ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(fd_);
}

void Terminal::type(const std::string& keys) {
  for (size_t done = 0; done < keys.size();) {
    const ssize_t count = write(fd_, keys.data() + done, keys.size() - done);
    if (count < 0) throw std::system_error(errno, std::generic_category(), "typing");
    done += static_cast<size_t>(count);
  }
}

// False at the end: the program has closed its terminal.
bool Terminal::read_more() {
  pollfd screen{fd_, POLLIN, 0};
  if (poll(&screen, 1, kLongestWaitMs) <= 0)
    throw std::runtime_error("the program hangs; on its screen: " + screen_);
  char bytes[4096];
  const ssize_t count = read(fd_, bytes, sizeof bytes);
  if (count <= 0) return false;
  screen_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::string Terminal::wait_for(const std::string& text) {
  for (;;) {
    if (const size_t at = screen_.find(text, seen_); at != std::string::npos) {
      const size_t end = at + text.size();
      const size_t begin = std::exchange(seen_, end);
      return screen_.substr(begin, end - begin);
    }
    if (!read_more())
      throw std::runtime_error("\"" + text + "\" never came; on the screen: " + screen_);
  }
}

bool Terminal::echoes() const {
  termios mode{};
  return tcgetattr(fd_, &mode) == 0 && (mode.c_lflag & ECHO) != 0;
}

int Terminal::wait() {
  while (read_more()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  has_ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace sluice::testing
