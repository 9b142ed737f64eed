#include "src/base/system_error.h"

#include <cerrno>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

namespace sluice {

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
    case EROFS: return "the file system is read-only; choose another folder with `offload_dir`";
    case ENOSPC: return "free some space or choose another disk with `offload_dir`";
    case EDQUOT:
      return "the disk quota is used up; free some space or choose another disk with `offload_dir`";
    case EFBIG:
      return "raise the file size limit (ulimit -f) or use a file system that allows larger files";
    case ENOMEM: return "free some memory, or lower the host memory budget";
    case ELOOP: return "a symbolic link there leads back to itself; point it at the file";
    case ENAMETOOLONG: return "the path, or a name in it, is too long; give a shorter one";
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

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    std::string where = error.path1().string();
    if (!error.path2().empty()) where += " and " + error.path2().string();
    return system_error(error.code().value(), where.empty() ? "a file or folder" : where);
  } catch (const std::system_error& error) {
    const bool is_errno = error.code().category() == std::generic_category() ||
                          error.code().category() == std::system_category();
    // No more threads are to be had.
    if (is_errno && error.code().value() == EAGAIN)
      return Error(ErrorKind::kResource, std::string("the system refused: ") + error.what(),
                   "raise the limit of processes and threads (ulimit -u), or lower `threads`");
    if (is_errno) return system_error(error.code().value(), "the system refused");
    return Error(ErrorKind::kFile, error.what(), "check the disk and the paths of the command");
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::kResource, "the system gave no more memory",
                 "close other programs or lower `memory_budget_bytes`");
  } catch (const std::exception& error) {
    return Error(ErrorKind::kInternal, error.what(),
                 "this is a bug in sluice; please report it with the command");
  } catch (...) {
    return Error(ErrorKind::kInternal, "something that is no exception was thrown",
                 "this is a bug in sluice; please report it with the command");
  }
}

}  // namespace sluice
