#include "tools/typed_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::tools {

namespace {
constexpr size_t kMostLines = 1000;
constexpr off_t kMostBytes = 4 << 20;  // a file beyond is cut to its newest lines

class HistoryFile {
 public:
  HistoryFile(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~HistoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  HistoryFile(const HistoryFile&) = delete;
  HistoryFile& operator=(const HistoryFile&) = delete;
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  bool write_all(const std::string& text) const {
    return write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

 private:
  int fd_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, reason),
              "make it writable, or leave it out with --no-history");
}

// The file's end, at most kMostBytes of it, from the beginning of a line.
std::string newest_bytes(const HistoryFile& file, off_t size) {
  const off_t from = size > kMostBytes ? size - kMostBytes : 0;
  std::string text(static_cast<size_t>(size - from), '\0');
  const ssize_t count = pread(file.fd(), text.data(), text.size(), from);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (from > 0) text.erase(0, text.find('\n') + 1);
  return text;
}
}  // namespace

TypedHistory::TypedHistory(std::string path) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  if (error) refuse(path_, error.message());
  // Not blocking: the path may be a pipe, which is refused below.
  const HistoryFile file(path_, O_RDWR | O_CREAT | O_NONBLOCK);
  if (!file.is_open()) refuse(path_, std::strerror(errno));
  struct stat status {};
  if (fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) refuse(path_, "not a file");
  fchmod(file.fd(), 0600);  // whoever made it
  const std::string text = newest_bytes(file, status.st_size);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines_.push_back(text::mend_utf8(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  if (lines_.size() > kMostLines)
    lines_.erase(lines_.begin(), lines_.end() - static_cast<ptrdiff_t>(kMostLines));
  if (status.st_size > kMostBytes) shorten();
}

// Written beside and put in its place, so that it is whole at any time.
void TypedHistory::shorten() const {
  const std::string beside = fmt::format("{}.{}", path_, getpid());
  {
    const HistoryFile file(beside, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.is_open()) return;
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    if (file.write_all(text) && std::rename(beside.c_str(), path_.c_str()) == 0) return;
  }
  unlink(beside.c_str());
}

void TypedHistory::add(const std::string& line) {
  if (line.empty() || (!lines_.empty() && lines_.back() == line)) return;
  lines_.push_back(line);
  const HistoryFile file(path_, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK);
  if (file.is_open()) file.write_all(line + "\n");
}

}  // namespace sluice::tools
