#include "io/files/watched_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "src/base/system_error.h"

namespace sluice::io {

namespace {
[[noreturn]] void refuse(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", path.string(), what),
              "start again; write a newer model into another folder, or beside the old one and "
              "rename it when it is whole");
}
}  // namespace

FileStamp stamp_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw system_error(errno, path.string());
  return {.bytes = status.st_size,
          .written_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

WatchedFiles::WatchedFiles(const std::vector<File>& files) {
  for (const File& file : files) {
    OwnedFd fd(::open(file.path.c_str(), O_PATH | O_CLOEXEC));
    if (!fd) throw system_error(errno, file.path.string());
    if (stamp_of(fd.get(), file.path) != file.stamp)
      refuse(file.path, "the file was changed or replaced while it was opened");
    open_.push_back({file, std::move(fd)});
  }
}

void WatchedFiles::check() const {
  for (const Open& open : open_)
    if (stamp_of(open.fd.get(), open.file.path) != open.file.stamp)
      refuse(open.file.path, "the file was written to while its weights were in use");
}

}  // namespace sluice::io
