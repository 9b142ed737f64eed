#include "src/jobs/results_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <system_error>

#include "src/base/error.h"
#include "src/jobs/record.h"
#include "src/jobs/record_lines.h"

namespace sluice::jobs {

namespace {

ContentKey key_of(const std::string& hex) {
  const auto key = ContentKey::from_hex(hex);
  SLUICE_ASSERT(key.has_value(), "parse_request and line_error make the keys");
  return *key;
}

}  // namespace

ResultsFile::ResultsFile(std::string path, std::string_view job_config, std::string model)
    : file_(std::move(path), O_RDWR | O_CREAT | O_NONBLOCK),
      config_(hash_bytes(job_config).hex()),
      model_(std::move(model)) {
  file_.size_bytes();  // refuses what is not a regular file
  lock();
  load();
  sync_folder_of(this->path());
  resumed_records_ = records_;
}

void ResultsFile::lock() {
  if (::flock(file_.fd(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    throw Error(ErrorKind::kUser, fmt::format("another process is writing {}", path()),
                "wait for it to end, or write to another file");
  }
  throw Error(ErrorKind::kFile,
              fmt::format("locking {}: {}", path(), std::generic_category().message(errno)),
              "write to a file system that has locks");
}

ResultsFile::~ResultsFile() {
  on_record = nullptr;  // what it speaks of may be gone
  try {
    flush();
  } catch (const std::exception&) {
    // What could not be written is made again when the job is resumed.
  }
}

// A group of error records that a crash broke off may have lost any of its blocks, which read as
// zeros; nothing was written behind it.
void ResultsFile::load() {
  int64_t line_number = 1;
  bool has_hole = false;
  const std::string tail = read_record_lines(file_, [&](const RecordLine& line) {
    has_hole = has_hole || line.text.find('\0') != std::string_view::npos;
    if (has_hole) {
      const auto record = read_record(line.text);
      if (record && record->is_answer) refuse_line(path(), line_number);
      return;
    }
    load_line(path(), line.text, line.number);
    size_bytes_ = line.offset + static_cast<int64_t>(line.text.size()) + 1;
    line_number = line.number + 1;
  });
  if (has_hole) {
    torn_bytes_ = file_.size_bytes() - size_bytes_;
    file_.truncate(size_bytes_);
    file_.sync();
  } else if (!tail.empty()) {
    mend_tail(tail, line_number);
  }
}

void ResultsFile::load_line(const std::string& path, std::string_view line, int64_t line_number) {
  const auto record = read_record(line);
  if (!record) refuse_line(path, line_number);
  if (record->config != config_) {
    throw Error(
        ErrorKind::kUser,
        fmt::format("{} holds answers of a job with another model or other settings (line {})",
                    path, line_number),
        "write to a new file, or repeat the model and settings of that job");
  }
  remember(record->key, record->custom_id, record->is_answer);
}

// What follows the last line end: a whole record that lacks only its line end is kept, a torn one
// cut off.
void ResultsFile::mend_tail(std::string_view tail, int64_t line_number) {
  if (read_record(tail)) {
    load_line(path(), tail, line_number);
    size_bytes_ += static_cast<int64_t>(tail.size());
    file_.write("\n", 1, size_bytes_);
    size_bytes_ += 1;
  } else if (is_torn(tail)) {
    torn_bytes_ = static_cast<int64_t>(tail.size());
    file_.truncate(size_bytes_);
  } else {
    refuse_line(path(), line_number);
  }
  file_.sync();
}

void ResultsFile::remember(const ContentKey& key, std::string_view custom_id, bool is_answer) {
  keys_.insert(key);
  if (is_answer) answer_keys_[hash_bytes(custom_id)] = key;
  ++records_;
  answers_ += is_answer;
}

void ResultsFile::include(const std::string& path) {
  const OwnedFile other(path, O_RDONLY | O_NONBLOCK);
  const int64_t records = records_, answers = answers_;
  const std::string tail = read_record_lines(
      other, [&](const RecordLine& line) { load_line(path, line.text, line.number); });
  if (read_record(tail)) load_line(path, tail, 0);
  records_ = records;
  answers_ = answers;
}

bool ResultsFile::take(std::string_view line) {
  const auto record = read_record(line);
  if (!record || record->config != config_)
    throw Error(ErrorKind::kUser, fmt::format("{} got a record of another job", path()),
                "start every process with the same model and settings");
  if (keys_.contains(record->key)) return false;
  flush();
  append(std::string(line) + '\n');
  remember(record->key, record->custom_id, record->is_answer);
  return true;
}

void ResultsFile::copy_from(const std::string& path) {
  const OwnedFile other(path, O_RDONLY | O_NONBLOCK);
  flush();
  const std::string tail =
      read_record_lines(other, [this](const RecordLine& line) { take(line.text); });
  if (read_record(tail)) take(tail);
}

void ResultsFile::for_each_record(
    const std::function<void(const ContentKey& key, std::string_view line)>& use) const {
  read_record_lines(file_, [&](const RecordLine& line) {
    if (const auto record = read_record(line.text)) use(record->key, line.text);
  });
}

void ResultsFile::append(std::string_view lines) {
  const auto bytes = static_cast<int64_t>(lines.size());
  try {
    if (has_torn_tail_) file_.truncate(size_bytes_);
    has_torn_tail_ = true;
    file_.write(lines.data(), bytes, size_bytes_);
    file_.sync();
    has_torn_tail_ = false;
  } catch (const Error& error) {
    try {
      file_.truncate(size_bytes_);
      has_torn_tail_ = false;
    } catch (const Error&) {
      // The next append tries again, and opening the file again cuts it off; the first error says
      // why.
    }
    throw Error(error.kind(),
                fmt::format("{}; its {} finished records are safe", error.text(), records_),
                error.mend());
  }
  size_bytes_ += bytes;
}

void ResultsFile::write(const Request& request, const Completion& completion) {
  write_answer(request,
               answer_line(request, completion, request.model.empty() ? model_ : request.model,
                           config_, std::time(nullptr)));
}

void ResultsFile::write(const Request& request, std::string_view body) {
  write_answer(request, routed_line(request, body, config_));
}

void ResultsFile::write_answer(const Request& request, const std::string& line) {
  const ContentKey key = key_of(request.key);
  SLUICE_ASSERT(!keys_.contains(key), "a request is answered once");
  flush();
  append(line + '\n');
  remember(key, request.custom_id, true);
  if (on_record) on_record(line);
}

void ResultsFile::write_error(const RequestError& error) {
  const ContentKey key = key_of(error.key);
  SLUICE_ASSERT(!keys_.contains(key), "an error is recorded once");
  const auto now = std::chrono::steady_clock::now();
  if (waiting_.empty()) waiting_since_ = now;
  waiting_ += error_line(error, config_);
  waiting_ends_.push_back(waiting_.size());
  waiting_ += '\n';
  keys_.insert(key);
  // Who listens waits for each record.
  const bool is_full = static_cast<int64_t>(waiting_.size()) >= kGroupBytes;
  if (on_record || is_full || now - waiting_since_ >= kGroupTime) flush();
}

void ResultsFile::flush() {
  if (waiting_.empty()) return;
  append(waiting_);
  const std::string lines = std::exchange(waiting_, {});
  const std::vector<size_t> ends = std::exchange(waiting_ends_, {});
  records_ += static_cast<int64_t>(ends.size());
  size_t begin = 0;
  for (const size_t end : ends) {
    if (on_record) on_record(std::string_view(lines).substr(begin, end - begin));
    begin = end + 1;
  }
}

void ResultsFile::write_error(const Request& request, std::string_view code,
                              std::string_view message) {
  write_error(RequestError{request.custom_id, request.line_number, std::string(code),
                           std::string(message), request.key});
}

Progress ResultsFile::progress(const Request& request) const {
  const ContentKey key = key_of(request.key);
  if (keys_.contains(key)) return Progress::kFinished;
  return answer_keys_.contains(hash_bytes(request.custom_id)) ? Progress::kOtherPrompt
                                                              : Progress::kNew;
}

bool ResultsFile::is_finished(const RequestError& error) const {
  return keys_.contains(key_of(error.key));
}

bool is_being_written(const std::string& path) {
  const OwnedFile file(path, O_RDONLY | O_NONBLOCK);
  return ::flock(file.fd(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

SplitCounts split_results(const std::string& results, const std::string& answers,
                          const std::string& errors) {
  std::ifstream input(results);
  OwnedFile to_answers(answers, O_WRONLY | O_CREAT | O_TRUNC);
  OwnedFile to_errors(errors, O_WRONLY | O_CREAT | O_TRUNC);
  SplitCounts counts;
  int64_t answer_bytes = 0, error_bytes = 0;
  for (std::string line; std::getline(input, line);) {
    const auto record = read_record(line);
    if (!record) continue;  // a torn last line
    line += '\n';
    const auto bytes = static_cast<int64_t>(line.size());
    if (record->is_answer) {
      to_answers.write(line.data(), bytes, answer_bytes);
      answer_bytes += bytes;
      ++counts.answers;
    } else {
      to_errors.write(line.data(), bytes, error_bytes);
      error_bytes += bytes;
      ++counts.errors;
    }
  }
  if (input.bad() || !input.eof())
    throw Error(ErrorKind::kFile, fmt::format("reading {} broke off", results), "check the disk");
  to_answers.sync();
  to_errors.sync();
  return counts;
}

}  // namespace sluice::jobs
