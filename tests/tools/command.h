#pragma once
// Runs the finished program as a user would: arguments and standard input in, both outputs and how
// it ended out. The program's own SLUICE_* variables are taken from its environment, so that the
// machine's settings decide nothing, and it computes with one thread where a test says nothing
// else: the models are tiny, and tests run beside each other. One thread at a time.
#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/files.h"

namespace sluice::testing {

/// How a command ended and what it wrote.
struct Outcome {
  int exit_code = -1;  ///< -1 when a signal ended it
  int signal = 0;
  std::string out;
  std::string err;

  /// `out` as JSON; a failed expectation and null when it is none.
  nlohmann::json json() const;
};

class Command {
 public:
  struct Options {
    std::string input;                     ///< standard input
    std::vector<std::string> environment;  ///< NAME=value, besides and before the machine's
    std::string output_path;               ///< standard output goes there instead of `out`
    std::string program;                   ///< another than sluice itself
  };

  /// Starts the program. Throws std::runtime_error when it can't be started.
  explicit Command(const std::vector<std::string>& arguments) : Command(arguments, Options()) {}
  Command(const std::vector<std::string>& arguments, const Options& options);
  /// Kills it if it still runs.
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  bool is_running();
  void send(int signal);
  /// Looks until `happened` or the program has ended; tells which. Gives up (throws) after minutes.
  bool wait_until(const std::function<bool()>& happened);
  /// Waits for the end. Throws when there is none within minutes.
  Outcome wait();
  /// What it has written to standard output so far.
  std::string output_so_far() const;

  /// The machine's environment less the program's own variables, what every test sets, and `more`.
  static std::vector<std::string> environment(const std::vector<std::string>& more);
  /// As exec takes them; into `texts`.
  static std::vector<char*> pointers(std::vector<std::string>& texts);

 private:
  void look(int options);

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  bool has_ended_ = false;
  int status_ = 0;
};

/// Runs the program to its end.
Outcome sluice(const std::vector<std::string>& arguments,
               const Command::Options& options = Command::Options());

/// Expects exit code 0; shows what was said otherwise.
Outcome succeed(const std::vector<std::string>& arguments,
                const Command::Options& options = Command::Options());

/// Expects `exit_code`, nothing on standard output, and every one of `words` on standard error.
Outcome fail(const std::vector<std::string>& arguments, int exit_code,
             const std::vector<std::string>& words);

/// The smallest --cpu-mem that a command with an engine runs with, as its error for less names it.
std::string smallest_budget(std::vector<std::string> arguments);

}  // namespace sluice::testing
