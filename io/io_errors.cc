#include "io/io_errors.h"

#include <cerrno>
#include <system_error>

namespace sluice::io {

namespace {

ErrorKind kind_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return ErrorKind::kResource;
    default: return ErrorKind::kFile;
  }
}

const char* mend_of(int error_number) {
  switch (error_number) {
    case ENOENT: return "check the path";
    case EISDIR: return "name a file, not a folder";
    case ENOTDIR: return "a part of the path is a file; check the path";
    case EACCES:
    case EPERM: return "check the permissions of the file and of its folders";
    case EROFS: return "the file system is read-only; choose another folder with --offload-dir";
    case ENOSPC: return "free some space or choose another disk with --offload-dir";
    case EDQUOT:
      return "the disk quota is used up; free some space or choose another disk with --offload-dir";
    case EFBIG:
      return "raise the file size limit (ulimit -f) or use a file system that allows larger files";
    case ENOMEM: return "free some memory, or lower the host memory budget";
    case EMFILE: return "raise the limit of open files (ulimit -n)";
    case ENFILE: return "the whole system is out of open files (fs.file-max)";
    case EIO: return "the disk reported a fault; look at the kernel log (dmesg) and check the disk";
    case ESTALE:
      return "the network file system lost the file; mount it again or copy the file to a local "
             "disk";
    default: return "";
  }
}

}  // namespace

std::string error_text(int error_number) { return std::generic_category().message(error_number); }

Error system_error(int error_number, const std::string& what) {
  return Error(kind_of(error_number), what + ": " + error_text(error_number),
               mend_of(error_number));
}

}  // namespace sluice::io
