#pragma once
// Where a batch's lines come from and its records go to: files, or "-" for the standard streams. A
// batch reads its input twice and its output's end before it begins, so what comes or goes through
// a pipe lies in a file without a name meanwhile.
#include <cstdint>
#include <string>

#include "src/jobs/owned_file.h"

namespace sluice::tools {

/// The lines of a job.
class BatchInput {
 public:
  /// Reads standard input to its end for "-". Errors: kFile, kResource (no space).
  explicit BatchInput(const std::string& path);
  /// May be opened any number of times.
  const std::string& path() const noexcept { return path_; }
  /// For messages.
  const std::string& name() const noexcept { return name_; }

 private:
  jobs::OwnedFile kept_;
  std::string path_, name_;
};

/// Where records go.
class BatchOutput {
 public:
  /// Errors: kFile.
  explicit BatchOutput(const std::string& path);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;
  bool is_stream() const noexcept { return is_stream_; }
  const std::string& path() const noexcept { return path_; }
  const std::string& name() const noexcept { return name_; }
  /// Passes on to standard output what was written since.
  void forward();

 private:
  bool is_stream_ = false;
  std::string path_, name_;
  jobs::OwnedFile kept_;
  int64_t forwarded_bytes_ = 0;
};

}  // namespace sluice::tools
