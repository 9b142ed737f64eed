#include "src/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kLfsPrefix = "version https://git-lfs";
constexpr int64_t kFirstRead = 64 << 10;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void refuse(const std::string& name, const std::string& problem,
                         const char* mend = "") {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", name, problem), mend);
}

// To the end, or one byte past the bound: then it is refused. `expected` is only a first guess.
std::string read_to_end(int fd, const std::string& name, int64_t expected, int64_t max_bytes) {
  std::string text;
  int64_t filled = 0;
  int64_t wanted = std::clamp<int64_t>(expected + 1, kFirstRead, max_bytes + 1);
  while (true) {
    if (filled == wanted) wanted = std::min(2 * wanted, max_bytes + 1);
    text.resize(static_cast<size_t>(wanted));
    const ssize_t got = ::read(fd, text.data() + filled, static_cast<size_t>(wanted - filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(errno, fmt::format("{}: reading it", name));
    filled += got;
    if (filled > max_bytes)
      refuse(name, fmt::format("more than {}, which such a file may have", format_bytes(max_bytes)),
             "check that this is the file that was meant");
    if (got == 0) break;
  }
  text.resize(static_cast<size_t>(filled));
  text.shrink_to_fit();
  return text;
}

std::string read_open_file(int fd, const fs::path& path, int64_t max_bytes, Streams streams) {
  const std::string name = path.string();
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw system_error(errno, name);
  if (S_ISDIR(status.st_mode)) throw system_error(EISDIR, name);
  const bool is_regular = S_ISREG(status.st_mode);
  if (!is_regular && streams == Streams::kRefuse) refuse(name, "not a regular file");
  if (is_regular && status.st_size > max_bytes)
    refuse(name,
           fmt::format("{} is more than such a file may have ({})", format_bytes(status.st_size),
                       format_bytes(max_bytes)),
           "check that this is the file that was meant");
  std::string text = read_to_end(fd, name, is_regular ? status.st_size : 0, max_bytes);
  refuse_lfs_pointer(text, path);
  return text;
}

// O_NONBLOCK where no stream may be: opening a pipe must not wait for a writer.
int open_to_read(const fs::path& path, Streams streams) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY;
  return ::open(path.c_str(), streams == Streams::kRefuse ? flags | O_NONBLOCK : flags);
}

}  // namespace

PathKind path_kind(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::kMissing;
    throw system_error(errno, path.string());
  }
  if (S_ISREG(status.st_mode)) return PathKind::kFile;
  return S_ISDIR(status.st_mode) ? PathKind::kFolder : PathKind::kOther;
}

bool is_file(const fs::path& path) { return path_kind(path) == PathKind::kFile; }
bool is_folder(const fs::path& path) { return path_kind(path) == PathKind::kFolder; }
bool is_there(const fs::path& path) { return path_kind(path) != PathKind::kMissing; }

std::string read_file(const fs::path& path, int64_t max_bytes, Streams streams) {
  const Descriptor file(open_to_read(path, streams));
  if (file.get() < 0) throw system_error(errno, path.string());
  return read_open_file(file.get(), path, max_bytes, streams);
}

std::optional<std::string> read_file_if_there(const fs::path& path, int64_t max_bytes) {
  const Descriptor file(open_to_read(path, Streams::kRefuse));
  if (file.get() < 0) {
    const int problem = errno;
    struct stat status {};
    const bool is_link = ::lstat(path.c_str(), &status) == 0;
    if ((problem == ENOENT || problem == ENOTDIR) && !is_link) return std::nullopt;
    throw system_error(problem, path.string());
  }
  return read_open_file(file.get(), path, max_bytes, Streams::kRefuse);
}

std::string read_standard_input(int64_t max_bytes) {
  return read_to_end(STDIN_FILENO, "standard input", 0, max_bytes);
}

void write_file(const fs::path& path, std::string_view text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) throw system_error(errno, path.string());
  while (!text.empty()) {
    const ssize_t put = ::write(file.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw system_error(put < 0 ? errno : EIO, path.string() + ": writing it");
    text.remove_prefix(static_cast<size_t>(put));
  }
}

std::vector<fs::path> folder_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem))
    paths.push_back(entry->path());
  if (problem) throw system_error(problem.value(), folder.string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void make_folder(const fs::path& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (is_folder(folder)) return;
  throw system_error(problem ? problem.value() : ENOTDIR,
                     fmt::format("{}: cannot make this folder", folder.string()));
}

void remove_file(const fs::path& path) {
  std::error_code problem;
  fs::remove(path, problem);
  if (problem) throw system_error(problem.value(), path.string() + ": removing it");
}

std::string temporary_folder() {
  std::string folder = "/tmp", source;
  for (const char* variable : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"})
    if (const char* const named = std::getenv(variable); source.empty() && named && *named) {
      folder = named;
      source = fmt::format(" that {} names", variable);
    }
  if (!is_folder(folder))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: the temporary folder{} is not there", folder, source),
                "set TMPDIR to a folder that is, or say `offload_dir`");
  return folder;
}

void refuse_lfs_pointer(std::string_view first_bytes, const fs::path& path) {
  if (!first_bytes.starts_with(kLfsPrefix)) return;
  throw Error(ErrorKind::kFile,
              fmt::format("{}: this is a Git LFS pointer, a small text that stands for the file, "
                          "not the file itself",
                          path.string()),
              "run \"git lfs pull\" in the model's folder, or download the file again");
}

}  // namespace sluice
