#include "src/jobs/owned_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "src/base/error.h"

namespace sluice::jobs {

namespace {

constexpr int64_t kLargestCall = int64_t{1}
                                 << 30;  // read(2) and write(2) take a little less than 2 GiB

[[noreturn]] void refuse_path(const char* doing, const std::string& path, int reason) {
  const bool is_full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
  throw Error(is_full ? ErrorKind::kResource : ErrorKind::kFile,
              fmt::format("{} {}: {}", doing, path, std::generic_category().message(reason)),
              is_full ? "make room (disk, quota or file size limit) and run the same command again"
                      : "check that the folder is there and may be written");
}

}  // namespace

OwnedFile::OwnedFile(std::string path, int flags) : path_(std::move(path)) {
  do {
    fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) refuse("opening", errno);
}

OwnedFile::~OwnedFile() {
  if (fd_ >= 0) ::close(fd_);
}

OwnedFile::OwnedFile(OwnedFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OwnedFile& OwnedFile::operator=(OwnedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

int64_t OwnedFile::size_bytes() const {
  struct stat found {};
  if (::fstat(fd_, &found) != 0) refuse("looking at", errno);
  if (!S_ISREG(found.st_mode)) {
    throw Error(ErrorKind::kFile, fmt::format("{} is not a regular file", path_),
                "name a file that can be continued");
  }
  return found.st_size;
}

int64_t OwnedFile::read(char* to, int64_t bytes, int64_t offset) const {
  int64_t done = 0;
  while (done < bytes) {
    const auto wanted = static_cast<size_t>(std::min(bytes - done, kLargestCall));
    const ssize_t got = ::pread(fd_, to + done, wanted, offset + done);
    if (got == 0) break;
    if (got < 0 && errno != EINTR) refuse("reading", errno);
    done += std::max<int64_t>(got, 0);
  }
  return done;
}

void OwnedFile::write(const void* from, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const auto wanted = static_cast<size_t>(std::min(bytes - done, kLargestCall));
    const ssize_t got = ::pwrite(fd_, static_cast<const char*>(from) + done, wanted, offset + done);
    if (got == 0) refuse("writing", ENOSPC);
    if (got < 0 && errno != EINTR) refuse("writing", errno);
    done += std::max<int64_t>(got, 0);
  }
}

void OwnedFile::truncate(int64_t bytes) {
  int result = 0;
  do {
    result = ::ftruncate(fd_, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) refuse("cutting back", errno);
}

void OwnedFile::sync() {
  if (::fdatasync(fd_) != 0) refuse("writing to disk", errno);
}

void OwnedFile::refuse(const char* doing, int reason) const { refuse_path(doing, path_, reason); }

void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const OwnedFile opened(folder, O_RDONLY | O_DIRECTORY);
  // Some file systems cannot sync a folder and say EINVAL; their names are then as safe as they
  // ever are.
  if (::fsync(opened.fd()) != 0 && errno != EINVAL)
    refuse_path("writing to disk the folder", folder, errno);
}

}  // namespace sluice::jobs
