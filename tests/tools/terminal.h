#pragma once
// The finished program in a terminal of its own (a pseudo terminal): keys in, what a person would
// see out. One thread at a time.
#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/tools/command.h"

namespace sluice::testing {

class Terminal {
 public:
  /// Starts the program. Throws std::runtime_error when it can't be started. Of `options`:
  /// environment.
  explicit Terminal(const std::vector<std::string>& arguments,
                    const Command::Options& options = Command::Options());
  /// Kills it if it still runs.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys);
  /// Reads the screen until `text` stands in what came since the last wait; gives what came, with
  /// it. Throws when the program ends before, or after minutes, with what came.
  std::string wait_for(const std::string& text);
  /// Waits for the program's end; its exit code. -1: a signal ended it.
  int wait();
  /// Whether the terminal itself shows what is typed: no line editor has it.
  bool echoes() const;
  /// All that was written to the screen.
  const std::string& screen() const { return screen_; }
  pid_t pid() const { return pid_; }

 private:
  bool read_more();

  int fd_ = -1;
  pid_t pid_ = -1;
  bool has_ended_ = false;
  std::string screen_;
  size_t seen_ = 0;
};

}  // namespace sluice::testing
