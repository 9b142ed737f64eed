#pragma once
// Reads a batch job's input line by line, as the engine has room for more requests: memory does not
// grow with the file except for 16-byte hashes of the custom_ids seen. Skips what the results file
// already holds. One thread at a time.
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <unordered_set>

#include "src/jobs/content_key.h"
#include "src/jobs/request.h"
#include "src/jobs/results_file.h"
#include "src/jobs/shard.h"

namespace sluice::jobs {

/// How long an input is.
struct InputCount {
  int64_t lines = 0;     // all
  int64_t requests = 0;  // that are not blank
};

/// Reads `input` to its end. Errors: kFile when reading breaks off.
InputCount count_requests(std::istream& input, const std::string& name);

/// Reads requests line by line; not thread safe.
class JobReader {
 public:
  /// `input` must outlive the reader; `name` is what messages call it. `results` may be null:
  /// nothing is skipped. `vocab_size` and `routed` as parse_request. `shard`: the others' lines are
  /// passed over.
  JobReader(std::istream& input, std::string name, sampling::SamplingParams defaults,
            const ResultsFile* results = nullptr, int64_t vocab_size = 0, Shard shard = {},
            RoutedLines routed = RoutedLines::kNone);

  /// The next line that is not blank and not finished, or nothing at the end. A custom_id that an
  /// earlier line has is a RequestError. Give errors to ResultsFile::write_error. Errors: kFile
  /// when reading breaks off; kUser when the results hold an answer to another prompt under a
  /// custom_id.
  std::optional<ParsedLine> next();

  int64_t lines_read() const noexcept { return line_number_; }
  /// The bytes of the line that next() gave last: where it begins, and how many without its end.
  int64_t line_offset() const noexcept { return line_offset_; }
  int64_t line_bytes() const noexcept { return line_bytes_; }
  /// Lines of the shard that the results file already holds.
  int64_t skipped() const noexcept { return skipped_; }

 private:
  ParsedLine parse_line(std::string_view line, bool is_too_long);
  bool is_finished(const ParsedLine& parsed) const;

  std::istream& input_;
  std::string name_;
  sampling::SamplingParams defaults_;
  const ResultsFile* results_;
  int64_t vocab_size_;
  Shard shard_;
  RoutedLines routed_;
  std::string line_;
  int64_t line_number_ = 0;
  int64_t line_offset_ = 0, line_bytes_ = 0;
  int64_t next_offset_ = 0;
  int64_t skipped_ = 0;
  std::unordered_set<ContentKey> seen_custom_ids_;
};

}  // namespace sluice::jobs
