#pragma once
// A job's rows dealt without anybody who deals: row r belongs to shard hash(r) of n. The hash is of
// the row's key (custom_id, else its line number), so every process that has the input knows its
// rows, and the order of lines does not matter where they have ids. The files of a job lie beside
// its output: OUT.shard-0-of-3 is what shard 0 of 3 wrote, OUT.rank-1 what a rank of an MPI job
// keeps. Whoever goes on with the job reads them all, so another n misses and doubles nothing. Pure
// but for job_files and take_others.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/jobs/request.h"

namespace sluice::jobs {

class ResultsFile;

/// Which rows of a job: all by default.
struct Shard {
  int64_t index = 0;  // from 0
  int64_t count = 1;

  bool operator==(const Shard&) const = default;
  /// Whether the row of this key (row_key) is in it. Of all shards of a count exactly one has it.
  bool has(std::string_view key) const noexcept;
  /// "0/3".
  std::string name() const;
};

/// A row's key: its custom_id, or line-<n> where it has none.
std::string row_key(const ParsedLine& line);

/// A variable of the environment; nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

/// "i/n" with 0 <= i < n; "auto": index and count from the scheduler's variables; "auto/n": the
/// index alone. Known: a Slurm array (SLURM_ARRAY_TASK_ID, _COUNT, _MIN, _MAX, _STEP), a Slurm step
/// (SLURM_PROCID, SLURM_NTASKS), Kubernetes (JOB_COMPLETION_INDEX and JOB_COMPLETIONS), Open MPI
/// (OMPI_COMM_WORLD_RANK, _SIZE). Errors: kUser, naming the variable.
Shard parse_shard(std::string_view text, const Variables& variables);

/// OUT.shard-0-of-3.
std::string shard_path(const std::string& output, const Shard& shard);
/// OUT.rank-1.
std::string rank_path(const std::string& output, int rank);

/// A file of a job, beside others.
struct JobFile {
  std::string path;
  std::optional<Shard> shard;  // nothing: the whole job's output
  bool is_rank = false;        // of an MPI job
};
/// Those that are there, by name: the output itself and the files of its shards and ranks. Errors:
/// kFile.
std::vector<JobFile> job_files(const std::string& output);

/// What becomes of other files' records.
enum class Others {
  kCount,  ///< what they hold is finished
  kCopy,   ///< and is written to our file too
};
/// Makes `results`, which is the file of `own` (nothing: the output), take what the job's other
/// files hold. Errors: kUser where another process writes rows that may be ours, or a file is
/// another job's; kFile.
void take_others(ResultsFile& results, const std::string& output, const std::optional<Shard>& own,
                 Others others = Others::kCount);

}  // namespace sluice::jobs
