#pragma once
// Reads a results file line by line, in pieces, so that no foreign file can take all memory.
// Internal to src/jobs.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/jobs/owned_file.h"

namespace sluice::jobs {

/// A line as it is read.
struct RecordLine {
  std::string_view text;  // without its end
  int64_t number = 0;     // from 1
  int64_t offset = 0;     // of its first byte
};

/// Gives every line that has an end; returns what follows the last one. Errors: kFile, also where
/// that can't become a record (refuse_line).
std::string read_record_lines(const OwnedFile& file,
                              const std::function<void(const RecordLine& line)>& use);

/// Can a crash have left this line? A record cut short, or the zeros that a file system shows for
/// data it lost. Also of the beginning of a line: can it become a record?
bool is_torn(std::string_view tail);

/// Throws kFile: this line is no record.
[[noreturn]] void refuse_line(const std::string& path, int64_t line_number);

}  // namespace sluice::jobs
