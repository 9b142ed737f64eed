#include "io/files/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "src/base/system_error.h"

namespace sluice::io {

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
  fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) {
    if (errno != ENOENT) throw system_error(errno, path.string());
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path.string(), error_text(ENOENT)),
                "check the path, or download the file again");
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw system_error(errno, path.string());
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorKind::kFile, fmt::format("{}: not a regular file", path.string()));
  size_ = status.st_size;
}

void InputFile::read(int64_t offset, std::span<std::byte> to, const char* what) const {
  const auto bytes = static_cast<int64_t>(to.size());
  if (offset < 0 || bytes > size_ || offset > size_ - bytes)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {} at offset {} needs {} bytes, but the file ends at {}",
                            path_.string(), what, offset, bytes, size_),
                "the file is cut short or damaged: download it again");
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(fd_.get(), to.data() + done, to.size() - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int problem = errno;
      const std::string where = fmt::format("{}: reading {} at offset {}", path_.string(), what,
                                            offset + static_cast<int64_t>(done));
      if (got < 0) throw system_error(problem, where);
      throw Error(ErrorKind::kFile, where + ": the file ends there now");
    }
    done += static_cast<size_t>(got);
  }
}

std::string InputFile::read_text(int64_t offset, int64_t bytes, const char* what) const {
  if (bytes < 0 || bytes > size_) {
    read(offset, {}, what);
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {} at offset {} claims {} bytes, the file has {}", path_.string(),
                            what, offset, bytes, size_),
                "the file is cut short or damaged: download it again");
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  read(offset, std::as_writable_bytes(std::span(text)), what);
  return text;
}

}  // namespace sluice::io
