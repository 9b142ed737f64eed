#pragma once
// The output of a batch job: JSON lines in the shape of OpenAI's batch output, appended one answer
// at a time, each by one write and fdatasync, so that what a crash or a full disk leaves is whole
// records. Records of errors, which cost nothing to make again, are appended in groups. Opening it
// again keeps them, cuts off a torn end, and knows what is finished. One process at a time (flock).
// One thread at a time.
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/jobs/content_key.h"
#include "src/jobs/owned_file.h"
#include "src/jobs/request.h"

namespace sluice::jobs {

/// A token as a completion's "logprobs" report it.
struct NamedToken {
  std::string text;   ///< of part of a character: the replacement character
  std::string bytes;  ///< that it stands for; empty: they are not known
  float logprob = 0;
};
struct TokenText : NamedToken {
  std::vector<NamedToken> top;  ///< likeliest first
};

/// One sample of an answer.
struct Completion {
  std::string text;
  std::string finish_reason;  // "stop", "length" or "tool_calls"
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::optional<std::vector<TokenText>> logprobs;  // when the request asked for them
  std::string message;  // of a chat: the whole message as JSON; empty: it is the text
};

/// What a results file holds of a request.
enum class Progress {
  kNew,
  kFinished,     // the file holds this request's record
  kOtherPrompt,  // it holds an answer under this custom_id, to another prompt or with other
                 // parameters
};

class ResultsFile {
 public:
  /// Opens or creates `path` and reads what it holds. `job_config`: all that decides the answers
  /// beside the requests (model, weights, format); a hash of it is kept in every record. `model`:
  /// what the records call the model. Errors: kFile (cannot open, not a regular file, a line that
  /// is no record, with its number); kUser (another process writes it; its records belong to
  /// another job). The file is changed only at its end: a torn last line is cut off, a whole one
  /// that lacks its line end gets it.
  ResultsFile(std::string path, std::string_view job_config, std::string model);
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;
  /// After flush(), as far as that succeeds.
  ~ResultsFile();

  /// Appends the answer; on disk when it returns.
  /// Errors: kFile (disk full, input/output error): the file is cut back to its whole records.
  void write(const Request& request, const Completion& completion);
  /// The same of a routed request: `body` is the answer as JSON.
  void write(const Request& request, std::string_view body);
  /// Takes an error record for a line that is no request. It is on disk before any later answer is,
  /// after flush(), and at the latest when kGroupBytes or kGroupTime have come together; at once
  /// where on_record listens.
  /// Errors: as write().
  void write_error(const RequestError& error);
  /// The same for a request that could not be run.
  void write_error(const Request& request, std::string_view code, std::string_view message);
  /// Appends the error records that wait; on disk when it returns. Errors: as write().
  void flush();
  static constexpr int64_t kGroupBytes = 64 << 10;
  static constexpr std::chrono::milliseconds kGroupTime{200};

  /// Counts what another file of the same job holds as finished; records() and answers() stay. The
  /// file is read as it stands, by whomever it is written meanwhile: a torn last line is passed
  /// over. Errors: as opening's, but that it may be in use.
  void include(const std::string& path);
  /// After each record that this process writes: the line without its end, on disk.
  std::function<void(std::string_view line)> on_record;
  /// Appends a record that another process wrote, unless the file holds one of its key. Tells
  /// whether it did. Errors: kFile where it is no record; kUser of another job's; as write().
  bool take(std::string_view line);
  /// take() for every whole record of another file. Errors: as take() and include().
  void copy_from(const std::string& path);
  /// Gives every whole record of the file, in its order. Errors: kFile.
  void for_each_record(
      const std::function<void(const ContentKey& key, std::string_view line)>& use) const;

  Progress progress(const Request& request) const;
  bool is_finished(const RequestError& error) const;

  const std::string& path() const noexcept { return file_.path(); }
  /// Records on disk: found at opening plus written since.
  int64_t records() const noexcept { return records_; }
  /// Of these, answers; all else are error records.
  int64_t answers() const noexcept { return answers_; }
  /// Found at opening.
  int64_t resumed_records() const noexcept { return resumed_records_; }
  /// Bytes of a torn end that were cut off at opening.
  int64_t torn_bytes() const noexcept { return torn_bytes_; }

 private:
  void lock();
  void load();
  void load_line(const std::string& path, std::string_view line, int64_t line_number);
  void mend_tail(std::string_view tail, int64_t line_number);
  void append(std::string_view lines);
  void write_answer(const Request& request, const std::string& line);
  void remember(const ContentKey& key, std::string_view custom_id, bool is_answer);

  OwnedFile file_;
  std::string config_;  // hash of the job's configuration
  std::string model_;
  int64_t size_bytes_ = 0;      // whole records
  bool has_torn_tail_ = false;  // a failed append could not be cut off
  int64_t records_ = 0;
  int64_t answers_ = 0;
  int64_t resumed_records_ = 0;
  int64_t torn_bytes_ = 0;
  std::string waiting_;  // error records, each with its line end
  std::vector<size_t> waiting_ends_;
  std::chrono::steady_clock::time_point waiting_since_;
  std::unordered_set<ContentKey> keys_;  // of every record, other files' included
  std::unordered_map<ContentKey, ContentKey>
      answer_keys_;  // hash of custom_id -> key of its answer
};

/// Whether another process holds the results file `path` to write it. Errors: kFile.
bool is_being_written(const std::string& path);

/// Records of both kinds.
struct SplitCounts {
  int64_t answers = 0, errors = 0;
};
/// Copies the records of `results` to one file of answers and one of errors, written anew, on disk
/// when it returns. Errors: kFile.
SplitCounts split_results(const std::string& results, const std::string& answers,
                          const std::string& errors);

}  // namespace sluice::jobs
