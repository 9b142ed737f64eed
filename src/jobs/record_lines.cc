#include "src/jobs/record_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/jobs/record.h"

namespace sluice::jobs {

namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr int64_t kMaxRecordBytes =
    int64_t{1} << 30;  // a longer line is no record: bounds memory on foreign files
constexpr int64_t kMostZeros = int64_t{16} << 20;  // that a crash leaves

}  // namespace

bool is_torn(std::string_view tail) {
  const size_t end = tail.find_last_not_of('\0');
  const std::string_view text = tail.substr(0, end == std::string_view::npos ? 0 : end + 1);
  return text.starts_with(kRecordStart.substr(0, text.size()));
}

void refuse_line(const std::string& path, int64_t line_number) {
  throw Error(ErrorKind::kFile,
              fmt::format("{} line {} is no record of a sluice job", path, line_number),
              "write to a new file, or remove the line if the file is damaged");
}

std::string read_record_lines(const OwnedFile& file,
                              const std::function<void(const RecordLine& line)>& use) {
  const int64_t file_bytes = file.size_bytes();
  std::vector<char> chunk(static_cast<size_t>(std::min(kReadBytes, file_bytes)));
  std::string line;  // the part of a line that earlier chunks held
  int64_t line_number = 1, line_offset = 0;
  for (int64_t offset = 0; offset < file_bytes;) {
    const int64_t got = file.read(chunk.data(), static_cast<int64_t>(chunk.size()), offset);
    if (got == 0) break;
    offset += got;
    std::string_view rest(chunk.data(), static_cast<size_t>(got));
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      use({line, line_number++, line_offset});
      line_offset += static_cast<int64_t>(line.size()) + 1;
      line.clear();
      rest.remove_prefix(end + 1);
    }
    line += rest;
    const bool is_record = is_torn(std::string_view(line).substr(0, kRecordStart.size()));
    const bool has_zeros = !line.empty() && line.back() == '\0';
    const auto bytes = static_cast<int64_t>(line.size());
    if (!is_record || bytes > (has_zeros ? kMostZeros : kMaxRecordBytes))
      refuse_line(file.path(), line_number);
  }
  return line;
}

}  // namespace sluice::jobs
