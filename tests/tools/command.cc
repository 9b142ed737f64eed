#include "tests/tools/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

extern char** environ;

namespace sluice::testing {

namespace {
using Clock = std::chrono::steady_clock;
constexpr auto kLimit = std::chrono::seconds(240);  // below ctest's own; for sanitizers under load
constexpr auto kPause = std::chrono::milliseconds(1);

int anonymous_file(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), name);
  return fd;
}

std::string read_whole(int fd) {
  struct stat status {};
  fstat(fd, &status);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

// The program gets the signals of a shell's foreground job, whatever the test runner blocked or
// ignored.
class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&value);
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    for (int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGXFSZ}) sigaddset(&usual, signal);
    posix_spawnattr_setsigmask(&value, &none);
    posix_spawnattr_setsigdefault(&value, &usual);
    posix_spawnattr_setflags(&value, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Attributes() { posix_spawnattr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  posix_spawnattr_t value{};
};
}  // namespace

nlohmann::json Outcome::json() const {
  auto parsed = nlohmann::json::parse(out, nullptr, false);
  if (!parsed.is_discarded()) return parsed;
  ADD_FAILURE() << "not JSON: " << out << "\nstandard error: " << err;
  return nullptr;
}

std::vector<std::string> Command::environment(const std::vector<std::string>& more) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry)
    if (std::strncmp(*entry, "SLUICE_", 7) != 0) out.emplace_back(*entry);
  out.emplace_back("SLUICE_THREADS=1");
  out.emplace_back("SLUICE_HARDWARE=none");  // no test waits for a machine to be measured
  // A variable that stands twice has its first value for the program.
  for (const std::string& variable : more) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    std::erase_if(out, [&](const std::string& other) { return other.starts_with(name); });
    out.push_back(variable);
  }
  return out;
}

std::vector<char*> Command::pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

Command::Command(const std::vector<std::string>& arguments, const Options& options)
    : in_(anonymous_file("stdin")), out_(anonymous_file("stdout")), err_(anonymous_file("stderr")) {
  if (pwrite(in_, options.input.data(), options.input.size(), 0) !=
      static_cast<ssize_t>(options.input.size()))
    throw std::runtime_error("standard input can't be prepared");
  const std::string program = options.program.empty() ? SLUICE_PROGRAM : options.program;
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment(options.environment);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in_, STDIN_FILENO);
  if (options.output_path.empty())
    posix_spawn_file_actions_adddup2(&files, out_, STDOUT_FILENO);
  else
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, options.output_path.c_str(), O_WRONLY,
                                     0);
  posix_spawn_file_actions_adddup2(&files, err_, STDERR_FILENO);
  const Attributes attributes;
  const int error = posix_spawn(&pid_, program.c_str(), &files, &attributes.value,
                                pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::system_error(error, std::generic_category(), program);
}

Command::~Command() {
  if (is_running()) {
    send(SIGKILL);
    look(0);
  }
  for (int fd : {in_, out_, err_}) close(fd);
}

void Command::look(int options) {
  if (has_ended_ || pid_ < 0) return;
  has_ended_ = waitpid(pid_, &status_, options) == pid_;
}

bool Command::is_running() {
  look(WNOHANG);
  return pid_ >= 0 && !has_ended_;
}

void Command::send(int signal) {
  if (is_running()) kill(pid_, signal);
}

bool Command::wait_until(const std::function<bool()>& happened) {
  const auto started = Clock::now();
  for (;;) {
    const bool runs = is_running();
    if (happened()) return true;
    if (!runs) return false;
    if (Clock::now() - started > kLimit) throw std::runtime_error("the program hangs");
    std::this_thread::sleep_for(kPause);
  }
}

Outcome Command::wait() {
  try {
    wait_until([] { return false; });
  } catch (const std::runtime_error&) {
    throw std::runtime_error("the program hangs; standard error so far: " + read_whole(err_));
  }
  Outcome outcome;
  if (WIFEXITED(status_)) outcome.exit_code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) outcome.signal = WTERMSIG(status_);
  outcome.out = read_whole(out_);
  outcome.err = read_whole(err_);
  return outcome;
}

std::string Command::output_so_far() const { return read_whole(out_); }

Outcome sluice(const std::vector<std::string>& arguments, const Command::Options& options) {
  return Command(arguments, options).wait();
}

Outcome succeed(const std::vector<std::string>& arguments, const Command::Options& options) {
  Outcome outcome = sluice(arguments, options);
  EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal << ": " << outcome.err;
  return outcome;
}

Outcome fail(const std::vector<std::string>& arguments, int exit_code,
             const std::vector<std::string>& words) {
  Outcome outcome = sluice(arguments);
  EXPECT_EQ(outcome.exit_code, exit_code) << "signal " << outcome.signal << ": " << outcome.err;
  EXPECT_EQ(outcome.out, "") << "results and errors must not mix";
  EXPECT_NE(outcome.err.find("sluice: error: "), std::string::npos) << outcome.err;
  for (const std::string& word : words)
    EXPECT_NE(outcome.err.find(word), std::string::npos)
        << "\"" << word << "\" is not in: " << outcome.err;
  return outcome;
}

std::string smallest_budget(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--cpu-mem", "1KiB"});
  const Outcome outcome = fail(arguments, 4, {"raise --cpu-mem to "});
  const std::string mark = "raise --cpu-mem to ";
  const size_t at = outcome.err.find(mark);
  if (at == std::string::npos) return "1KiB";
  const size_t begin = at + mark.size();
  return outcome.err.substr(begin, outcome.err.find(',', begin) - begin);
}

}  // namespace sluice::testing
