#pragma once
// Puts a job's results files together: one record for each row of the input, in the input's order.
// Rows are known by their keys (custom_id, or the line of an error record); the input is read line
// by line and records are copied from where they lie, so memory grows by some tens of bytes a row.
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace sluice::jobs {

/// What a merge found.
struct MergeReport {
  int64_t rows = 0;  // of the input
  int64_t answers = 0, errors = 0;
  int64_t missing = 0;
  int64_t doubled = 0;                     // records beyond the first of a row, all alike
  std::vector<std::string> first_missing;  // "line 3 (custom_id "a")", at most ten
};

/// What becomes of a merge where rows have no record.
enum class Missing { kRefuse, kAllow };

/// Writes `output` anew, in one step at the end, from the records of `sources`, which may name the
/// output itself. `name` is what messages call the input. Errors: kUser: a row has two answers that
/// differ, a record is of no row, files of different jobs, a source is being written, rows are
/// missing (but with kAllow); kFile. `output` is as it was then.
MergeReport merge_results(std::istream& input, const std::string& name,
                          const std::vector<std::string>& sources, const std::string& output,
                          Missing missing = Missing::kRefuse);

}  // namespace sluice::jobs
