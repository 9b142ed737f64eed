#include "src/jobs/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/base/error.h"

namespace sluice::jobs {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr int64_t kMostPassedOver = 16 * kMaxLineBytes;  // of one line: what is longer has no end

enum class Line { kEnd, kWhole, kTooLong };

// Reads up to the next line end into `line`, without it; of a line that is too long, the beginning.
// Adds what it read, with the line end, to `bytes`.
Line read_line(std::istream& input, const std::string& name, std::string& line, int64_t& bytes) {
  std::array<char, 65536> buffer;
  line.clear();
  bool has_read = false, is_too_long = false;
  int64_t passed_over = 0;
  for (bool at_end = false; !at_end;) {
    input.getline(buffer.data(), buffer.size());
    auto got = static_cast<size_t>(input.gcount());
    bytes += static_cast<int64_t>(got);
    if (input.bad()) throw Error(ErrorKind::kFile, fmt::format("reading {} broke off", name));
    has_read = has_read || got > 0;
    at_end = input.eof() || !input.fail();
    if (at_end && !input.eof()) --got;  // the line end is counted, not stored
    if (!at_end) input.clear();         // only the buffer was full
    if (!at_end && got == 0)
      throw Error(ErrorKind::kFile, fmt::format("reading {} broke off", name));
    if (static_cast<int64_t>(line.size()) <= kMaxLineBytes) {
      line.append(buffer.data(), got);
      continue;
    }
    is_too_long = true;
    passed_over += static_cast<int64_t>(got);
    if (passed_over > kMostPassedOver)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: a line of more than {} bytes", name, kMostPassedOver),
                  "give JSON lines, each a request");
  }
  if (!has_read) return Line::kEnd;
  is_too_long = is_too_long || static_cast<int64_t>(line.size()) >
                                   kMaxLineBytes + 2;  // a mark or line end is not of it
  return is_too_long ? Line::kTooLong : Line::kWhole;
}

std::string_view trim(std::string_view line, int64_t line_number) {
  if (line_number == 1 && line.starts_with(kByteOrderMark))
    line.remove_prefix(kByteOrderMark.size());
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  return line;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

}  // namespace

InputCount count_requests(std::istream& input, const std::string& name) {
  InputCount count;
  std::string line;
  int64_t bytes = 0;
  while (read_line(input, name, line, bytes) != Line::kEnd) {
    ++count.lines;
    count.requests += !is_blank(trim(line, count.lines));
  }
  return count;
}

JobReader::JobReader(std::istream& input, std::string name, sampling::SamplingParams defaults,
                     const ResultsFile* results, int64_t vocab_size, Shard shard,
                     RoutedLines routed)
    : input_(input),
      name_(std::move(name)),
      defaults_(std::move(defaults)),
      results_(results),
      vocab_size_(vocab_size),
      shard_(shard),
      routed_(routed) {}

ParsedLine JobReader::parse_line(std::string_view line, bool is_too_long) {
  if (is_too_long) {
    return line_error(line.substr(0, kMaxCustomIdBytes), line_number_, "", "line_too_long",
                      fmt::format("the line is longer than {} bytes", kMaxLineBytes));
  }
  ParsedLine parsed = parse_request(line, defaults_, line_number_, vocab_size_, routed_);
  const auto* request = std::get_if<Request>(&parsed);
  if (request == nullptr || seen_custom_ids_.insert(hash_bytes(request->custom_id)).second)
    return parsed;
  return line_error(line, line_number_, request->custom_id, "duplicate_custom_id",
                    "an earlier line has the same custom_id; give each line its own");
}

bool JobReader::is_finished(const ParsedLine& parsed) const {
  if (results_ == nullptr) return false;
  if (const auto* error = std::get_if<RequestError>(&parsed)) return results_->is_finished(*error);
  const auto& request = std::get<Request>(parsed);
  const Progress progress = results_->progress(request);
  if (progress == Progress::kOtherPrompt) {
    throw Error(ErrorKind::kUser,
                fmt::format("{} line {}: {} holds an answer under custom_id \"{}\" to another "
                            "prompt or other parameters",
                            name_, line_number_, results_->path(), request.custom_id),
                "write to a new file, or give the line another custom_id");
  }
  return progress == Progress::kFinished;
}

std::optional<ParsedLine> JobReader::next() {
  for (;;) {
    line_offset_ = next_offset_;
    const Line read = read_line(input_, name_, line_, next_offset_);
    if (read == Line::kEnd) return std::nullopt;
    ++line_number_;
    const std::string_view line = trim(line_, line_number_);
    if (is_blank(line)) continue;
    line_bytes_ = static_cast<int64_t>(line_.size());
    ParsedLine parsed = parse_line(line, read == Line::kTooLong);
    if (!shard_.has(row_key(parsed))) continue;
    if (!is_finished(parsed)) return parsed;
    ++skipped_;
  }
}

}  // namespace sluice::jobs
