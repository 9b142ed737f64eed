#pragma once
// Lines that a person or a program gives on standard input: edited, with the lines of earlier
// times, where a person types them; as they come from a pipe or a file. One thread.
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace sluice::tools {

class LineReader {
 public:
  struct Line {
    enum class Kind { kText, kEnd, kInterrupted };
    Kind kind = Kind::kEnd;
    std::string text;       ///< UTF-8 where it was typed, else as it came; without the newline
    bool had_text = false;  ///< kInterrupted: something was typed
  };
  virtual ~LineReader() = default;

  /// The next line; kEnd at the input's end or when asked to stop. Errors: kUser for a line of more
  /// than 16 MiB.
  virtual Line next(std::stop_token stop) = 0;
  /// Whether Ctrl-C came between two lines since the last time it was asked. Only of a terminal:
  /// elsewhere Ctrl-C stops the program.
  virtual bool was_interrupted() = 0;
  virtual bool is_terminal() const = 0;

  /// Edited lines where standard input is a terminal; Ctrl-C then stops no program while the reader
  /// lives. `history`: a file for what was typed, made with its folders for its owner only;
  /// nothing: none is kept. That it can't be kept is said once on standard error.
  static std::unique_ptr<LineReader> open(const std::optional<std::string>& history);
};

/// $XDG_STATE_HOME/sluice/chat_history, or in ~/.local/state; nothing when neither is set.
std::optional<std::string> chat_history_path();

}  // namespace sluice::tools
