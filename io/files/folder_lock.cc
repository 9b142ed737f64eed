#include "io/files/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>

#include "src/base/system_error.h"

namespace sluice::io {

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? std::filesystem::path(".") : folder;
  fd_.reset(::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd_) throw system_error(errno, named.string());
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK)
    throw Error(ErrorKind::kUser,
                fmt::format("{}: another sluice is writing into this folder", named.string()),
                "wait for it, or choose another destination");
  if (errno != ENOTSUP && errno != ENOLCK && errno != EBADF)
    throw system_error(errno, named.string() + ": locking it");
}

}  // namespace sluice::io
