#pragma once
// A file descriptor with one owner, and the few calls that result files need, each either whole or
// an Error that names the path and the system's reason. One thread at a time.
#include <cstdint>
#include <string>

namespace sluice::jobs {

class OwnedFile {
 public:
  OwnedFile() = default;
  /// `flags` as open(2), close-on-exec is added; new files get 0644. Errors: kFile.
  OwnedFile(std::string path, int flags);
  ~OwnedFile();
  OwnedFile(OwnedFile&& other) noexcept;
  OwnedFile& operator=(OwnedFile&& other) noexcept;

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }

  /// Bytes of a regular file. Errors: kFile when it is not one.
  int64_t size_bytes() const;
  /// Up to `bytes` from `offset`; fewer at the end of the file only. Errors: kFile.
  int64_t read(char* to, int64_t bytes, int64_t offset) const;
  /// All `bytes` at `offset`. Errors: kFile; what part was written is unknown then.
  void write(const void* from, int64_t bytes, int64_t offset);
  void truncate(int64_t bytes);
  /// Data and size on disk when it returns. Errors: kFile.
  void sync();

 private:
  [[noreturn]] void refuse(const char* doing, int reason) const;

  std::string path_;
  int fd_ = -1;
};

/// Makes a new name in the folder of `path` last over a power cut. Errors: kFile.
void sync_folder_of(const std::string& path);

}  // namespace sluice::jobs
