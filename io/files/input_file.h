#pragma once
// A file opened for reading a few ranges of it: headers, directories, pickles. Every read is
// checked against the file's size first, so a length that lies in a file is an Error, never a huge
// allocation. Not for bulk data: that is FileEngine's and PieceReader's work. Safe to share between
// threads (pread only).
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "io/files/owned_fd.h"
#include "io/files/watched_files.h"

namespace sluice::io {

class InputFile {
 public:
  /// Errors: kFile when missing, unreadable or not a regular file, with path and cause.
  explicit InputFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  int64_t size() const noexcept { return size_; }
  /// Errors: kFile.
  FileStamp stamp() const { return stamp_of(fd_.get(), path_); }
  /// Fills `to` from `offset`. `what` names the part in errors ("header"). Errors: kFile when the
  /// range ends past the end of the file or cannot be read.
  void read(int64_t offset, std::span<std::byte> to, const char* what) const;
  /// The same into a new string of `bytes`.
  std::string read_text(int64_t offset, int64_t bytes, const char* what) const;

 private:
  std::filesystem::path path_;
  OwnedFd fd_;
  int64_t size_ = 0;
};

}  // namespace sluice::io
