#pragma once
// What a person typed at earlier times: a file of lines that only its owner may read. Every line is
// appended at once, so several programs may write and a killed one loses nothing.
#include <string>
#include <vector>

namespace sluice::tools {

class TypedHistory {
 public:
  /// Errors: kFile when `path` or its folders can't be made or read.
  explicit TypedHistory(std::string path);

  /// The newest, oldest first; at most 1000.
  const std::vector<std::string>& lines() const noexcept { return lines_; }
  /// A line without newlines; the same as the last is not kept twice. What can't be written is
  /// lost.
  void add(const std::string& line);

 private:
  void shorten() const;

  std::string path_;
  std::vector<std::string> lines_;
};

}  // namespace sluice::tools
