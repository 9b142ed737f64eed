#pragma once
// A scratch file on disk for what does not fit in memory (KV, activations, weights). It has no
// name, so it vanishes with the process however that ends; others can't read it (mode 0600); its
// space is reserved when it is made, so a full disk shows up at the start and not hours later.
#include <cstdint>
#include <string>

#include "io/async/file_engine.h"
#include "io/files/owned_fd.h"

namespace sluice::io {

class OffloadFile {
 public:
  /// Makes a file of `bytes` (rounded up to kDirectAlignment) in the existing folder `directory`;
  /// `name` stands in error texts ("KV offload"). Direct where the file system can and `direct`
  /// asks for it. Errors: kResource when space or quota is short (folder, wanted, free); kFile when
  /// the folder is missing, is not a folder, or can't be written.
  static OffloadFile create(const std::string& directory, int64_t bytes, const std::string& name,
                            bool direct = true);

  int64_t bytes() const noexcept { return bytes_; }
  bool is_direct() const noexcept { return is_direct_; }
  /// The folder is on tmpfs or the like: writing there takes memory, not disk.
  bool is_in_memory() const noexcept { return is_in_memory_; }
  /// The descriptor, still owned by this object.
  int fd() const noexcept { return fd_.get(); }
  /// "KV offload in /data/scratch".
  const std::string& name() const noexcept { return name_; }

  /// Hands the file to `engine`, which then owns it; this object is empty afterwards.
  FileId give_to(FileEngine& engine);

 private:
  OffloadFile() = default;
  OwnedFd fd_;
  std::string name_;
  int64_t bytes_ = 0;
  bool is_direct_ = false;
  bool is_in_memory_ = false;
};

}  // namespace sluice::io
