#pragma once
// Files that must stay as they are while they are read, such as a running model's weights: a pass
// that read some of them before a change and some after it computes nothing that means anything.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/files/owned_fd.h"

namespace sluice::io {

/// How long a file is, and when it was last written: what tells whether it is still what it was.
/// Some file systems number a file anew each time that it is opened, so its number tells nothing.
struct FileStamp {
  int64_t bytes = 0;
  int64_t written_ns = 0;  ///< since 1970

  bool operator==(const FileStamp&) const = default;
};
/// Of the open file `fd`; `path` stands in errors. Errors: kFile.
FileStamp stamp_of(int fd, const std::filesystem::path& path);

class WatchedFiles {
 public:
  struct File {
    std::filesystem::path path;
    FileStamp stamp;  ///< of when its headers were read
  };
  /// Opens the files. Errors: kFile, naming the file, where one can't be opened, has been written
  /// to since `stamp`, or another file has its name now (of another length or time).
  explicit WatchedFiles(const std::vector<File>& files);
  /// Errors: kFile, naming the file, where one was written to since `stamp`. A file whose name
  /// another has taken is as it was for those who have opened it. One fstat a file.
  void check() const;

 private:
  struct Open {
    File file;
    OwnedFd fd;
  };
  std::vector<Open> open_;
};

}  // namespace sluice::io
