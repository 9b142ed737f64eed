#pragma once
// One writer a folder: held by everything that writes a model, so that two of them never mix their
// files. The lock is on the folder itself and goes with the process, however that ends; nothing is
// left behind. One owner thread.
#include <filesystem>

#include "io/files/owned_fd.h"

namespace sluice::io {

class FolderLock {
 public:
  /// `folder` must be there. Errors: kUser when another process (or another lock of this one) holds
  /// it; kFile. A file system without locks gives none, silently: there is no better way there.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  OwnedFd fd_;
};

}  // namespace sluice::io
