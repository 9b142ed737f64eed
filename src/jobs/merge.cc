#include "src/jobs/merge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>

#include "src/base/error.h"
#include "src/jobs/content_key.h"
#include "src/jobs/job.h"
#include "src/jobs/owned_file.h"
#include "src/jobs/record.h"
#include "src/jobs/record_lines.h"

namespace sluice::jobs {

namespace {

using Json = nlohmann::json;

constexpr size_t kMostNamed = 10;
constexpr int64_t kWriteBytes = int64_t{1} << 20;

// Where a record lies.
struct Place {
  size_t file = 0;
  int64_t offset = 0, bytes = 0;
  bool is_used = false;
};

// An error record of a line; another line's with the same text or name has another.
struct ErrorPlace : Place {
  ContentKey custom_id;
};

// What of an answer two processes that computed the same agree on: no time, no random ids.
Json compared(std::string_view line) {
  Json record = Json::parse(line);
  Json& body = record["response"]["body"];
  body.erase("created");
  for (Json& choice : body["choices"])
    if (choice.contains("message") && choice["message"].contains("tool_calls"))
      for (Json& call : choice["message"]["tool_calls"]) call.erase("id");
  return record;
}

// The records of all sources by the row that they are of.
class Index {
 public:
  explicit Index(const std::vector<std::string>& sources) {
    for (const std::string& path : sources) {
      if (is_being_written(path))
        throw Error(ErrorKind::kUser, fmt::format("a process is still writing {}", path),
                    "wait for it to end");
      files_.emplace_back(path, O_RDONLY | O_NONBLOCK);
      const std::string tail =
          read_record_lines(files_.back(), [this](const RecordLine& line) { add(line); });
      if (read_record(tail))  // whole, but for its line end
        add({tail, 0, files_.back().size_bytes() - static_cast<int64_t>(tail.size())});
    }
  }

  // The record of a row, marked as used; null: there is none. `is_first`: no earlier line has its
  // custom_id.
  const Place* find(const ParsedLine& row, int64_t line_number, bool is_first) {
    const auto* request = std::get_if<Request>(&row);
    const std::string& custom_id =
        request ? request->custom_id : std::get<RequestError>(row).custom_id;
    const ContentKey name = hash_bytes(custom_id);
    Place* found = nullptr;
    if (const auto it = answers_.find(name); is_first && request && it != answers_.end())
      found = &it->second;
    const auto range = errors_.equal_range(line_number);
    for (auto it = range.first; it != range.second; ++it) {
      const bool is_plain = request && it->second.custom_id == hash_bytes("");
      if (it->second.custom_id != name && !is_plain) continue;
      doubled_ += found != nullptr;
      it->second.is_used = true;
      if (!found) found = &it->second;
    }
    if (found) found->is_used = true;
    return found;
  }

  std::string text(const Place& place) const {
    std::string out(static_cast<size_t>(place.bytes), '\0');
    files_[place.file].read(out.data(), place.bytes, place.offset);
    return out;
  }

  int64_t doubled() const noexcept { return doubled_; }

  // Errors: kUser where a record is of no row.
  void refuse_left_over(const std::string& name) const {
    int64_t left = 0;
    const Place* first = nullptr;
    const auto look = [&](const auto& places) {
      for (const auto& [key, place] : places) {
        if (place.is_used) continue;
        ++left;
        if (!first) first = &place;
      }
    };
    look(answers_);
    look(errors_);
    if (!first) return;
    const Json custom_id = Json::parse(text(*first))["custom_id"];
    throw Error(ErrorKind::kUser,
                fmt::format("{} records are of no row of {}, one in {} (custom_id {})", left, name,
                            files_[first->file].path(), custom_id.dump()),
                "name the input that the job had");
  }

 private:
  void add(const RecordLine& line) {
    const auto record = read_record(line.text);
    const std::string& path = files_.back().path();
    if (!record) refuse_line(path, line.number);
    if (config_.empty()) config_ = record->config;
    if (record->config != config_)
      throw Error(ErrorKind::kUser,
                  fmt::format("{} and {} hold answers of different jobs: another model or other "
                              "settings",
                              files_.front().path(), path),
                  "merge the files of one job");
    const Place place{files_.size() - 1, line.offset, static_cast<int64_t>(line.text.size())};
    if (!record->is_answer) {
      errors_.emplace(record->error_line, ErrorPlace{place, hash_bytes(record->custom_id)});
      return;
    }
    const auto [it, is_new] = answers_.emplace(hash_bytes(record->custom_id), place);
    if (is_new) return;
    if (compared(text(it->second)) != compared(line.text))
      throw Error(
          ErrorKind::kUser,
          fmt::format("{} and {} hold different answers under custom_id \"{}\"",
                      files_[it->second.file].path(), path, record->custom_id),
          "remove the line that is wrong; unlike machines or another input may be the reason");
    ++doubled_;
  }

  std::vector<OwnedFile> files_;
  std::string config_;
  std::unordered_map<ContentKey, Place> answers_;        // by hash of custom_id
  std::unordered_multimap<int64_t, ErrorPlace> errors_;  // by line of the input
  int64_t doubled_ = 0;
};

// A file that takes its place when all is written, and goes when it is not.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), file_(path + ".merging", O_WRONLY | O_CREAT | O_TRUNC) {}
  ~NewFile() {
    if (!is_placed_) std::remove(file_.path().c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void add(std::string_view line) {
    buffer_ += line;
    buffer_ += '\n';
    if (static_cast<int64_t>(buffer_.size()) >= kWriteBytes) flush();
  }
  void place() {
    flush();
    file_.sync();
    if (std::rename(file_.path().c_str(), path_.c_str()) != 0)
      throw Error(ErrorKind::kFile,
                  fmt::format("writing {}: {}", path_, std::generic_category().message(errno)));
    is_placed_ = true;
    sync_folder_of(path_);
  }

 private:
  void flush() {
    file_.write(buffer_.data(), static_cast<int64_t>(buffer_.size()), bytes_);
    bytes_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

  std::string path_;
  OwnedFile file_;
  std::string buffer_;
  int64_t bytes_ = 0;
  bool is_placed_ = false;
};

}  // namespace

MergeReport merge_results(std::istream& input, const std::string& name,
                          const std::vector<std::string>& sources, const std::string& output,
                          Missing missing) {
  Index index(sources);
  NewFile file(output);
  MergeReport report;
  JobReader reader(input, name, {});
  while (const auto row = reader.next()) {
    ++report.rows;
    const int64_t line = reader.lines_read();
    const auto* error = std::get_if<RequestError>(&*row);
    const Place* place = index.find(*row, line, !error || error->code != "duplicate_custom_id");
    if (place) {
      const std::string text = index.text(*place);
      ++(read_record(text)->is_answer ? report.answers : report.errors);
      file.add(text);
      continue;
    }
    if (report.missing++ < static_cast<int64_t>(kMostNamed))
      report.first_missing.push_back(fmt::format("line {} ({})", line, row_key(*row)));
  }
  report.doubled = index.doubled();
  index.refuse_left_over(name);
  if (report.missing > 0 && missing == Missing::kRefuse)
    throw Error(
        ErrorKind::kUser,
        fmt::format("{} of {} rows have no record: {}{}", report.missing, report.rows,
                    fmt::join(report.first_missing, ", "),
                    report.missing > static_cast<int64_t>(kMostNamed) ? ", ..." : ""),
        "run the job again, it answers what is missing; or give `partial` to merge what is there");
  file.place();
  return report;
}

}  // namespace sluice::jobs
