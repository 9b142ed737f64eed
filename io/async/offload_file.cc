#include "io/async/offload_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <atomic>
#include <cerrno>
#include <limits>

#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

constexpr const char* kMend = "free some space there or choose another disk with `offload_dir`";

/// Bytes that this user may still take in the file system of `directory`; -1 where it can't be
/// told.
int64_t free_bytes(const std::string& directory) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) return -1;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

Error space_error(const std::string& name, int64_t bytes, int64_t free, int error_number) {
  const std::string available = free < 0 ? "an unknown amount" : format_bytes(free);
  return Error(ErrorKind::kResource,
               fmt::format("reserving {} for {}: {} ({} free)", format_bytes(bytes), name,
                           error_text(error_number), available),
               error_number == EFBIG ? "raise the file size limit (ulimit -f) or use a file system "
                                       "that allows larger files"
                                     : kMend);
}

void require_folder(const std::string& directory, const std::string& name) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) throw system_error(errno, "making " + name);
  if (!S_ISDIR(status.st_mode)) throw system_error(ENOTDIR, "making " + name);
}

/// Opened and no longer in any folder, or empty with errno set.
OwnedFd open_nameless(const std::string& directory, int extra_flags) {
  const int flags = O_RDWR | O_CLOEXEC | extra_flags;
  OwnedFd fd(::open(directory.c_str(), flags | O_TMPFILE | O_EXCL, 0600));
  if (fd || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
    return fd;
  // Without O_TMPFILE there is a name for a moment.
  static std::atomic<uint64_t> count{0};
  const std::string path =
      fmt::format("{}/.sluice-offload-{}-{}", directory, ::getpid(), count.fetch_add(1));
  fd.reset(::open(path.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  const int error_number = errno;
  ::unlink(path.c_str());
  errno = error_number;
  return fd;
}

void reserve(int fd, const std::string& directory, const std::string& name, int64_t bytes) {
  const int64_t free = free_bytes(directory);
  rlimit limit{};  // asked first, because the kernel also sends a deadly signal when it is passed
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    throw space_error(name, bytes, free, EFBIG);
  }
  // Asked before fallocate, which would fill the disk, to everybody's harm, before it gives up.
  if (free >= 0 && free < bytes) throw space_error(name, bytes, free, ENOSPC);
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    throw space_error(name, bytes, free, errno);
  if (errno != EOPNOTSUPP)
    throw system_error(errno, "reserving " + format_bytes(bytes) + " for " + name);
  // This file system can't reserve: the comparison above has to do.
  if (::ftruncate(fd, bytes) != 0) throw system_error(errno, "sizing " + name);
}

bool is_memory_file_system(int fd) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return false;
  return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

}  // namespace

OffloadFile OffloadFile::create(const std::string& directory, int64_t bytes,
                                const std::string& name, bool direct) {
  SLUICE_ASSERT(bytes >= 0 && bytes <= std::numeric_limits<int64_t>::max() - kDirectAlignment,
                "an offload file has a size");
  OffloadFile file;
  file.name_ = name + " in " + directory;
  file.bytes_ = round_up(bytes, kDirectAlignment);
  require_folder(directory, file.name_);
  if (direct) file.fd_ = open_nameless(directory, O_DIRECT);
  file.is_direct_ = static_cast<bool>(file.fd_);
  if (!file.fd_) file.fd_ = open_nameless(directory, 0);
  if (!file.fd_) throw system_error(errno, "making " + file.name_);
  file.is_in_memory_ = is_memory_file_system(file.fd_.get());
  if (file.bytes_ > 0) reserve(file.fd_.get(), directory, file.name_, file.bytes_);
  return file;
}

FileId OffloadFile::give_to(FileEngine& engine) {
  SLUICE_ASSERT(fd_, "an offload file is given away once");
  return engine.adopt(std::move(fd_), name_, is_direct_);
}

}  // namespace sluice::io
