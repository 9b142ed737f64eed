#pragma once
// The files that callers have uploaded and batches have written (/v1/files): each a file of bytes
// and one that describes it, in a folder of the server's. A file is there, whole, when its
// description is; what a crash left half is removed at the next start. Thread safe.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/mutex.h"

namespace sluice::serve {

/// A file that a caller gave or a batch made.
struct StoredFile {
  std::string id;  ///< "file-" and 32 hexadecimal digits
  std::string filename;
  std::string purpose;  ///< "batch", "batch_output"
  int64_t bytes = 0;
  int64_t created = 0;  ///< seconds since 1970
  int64_t expires = 0;  ///< then it goes, unless a batch reads it; 0: it stays
};

/// What callers may leave here.
struct FileLimits {
  int64_t bytes = int64_t{10} << 30;  ///< of all files together, batches' outputs among them
  size_t files = 10'000;
};

class FileStore {
 public:
  /// Makes the folder where it is missing. `is_in_use`: whether a file stays although it has
  /// expired; may be empty. Errors: kFile.
  explicit FileStore(std::filesystem::path folder, FileLimits limits = {},
                     std::function<bool(const std::string& id)> is_in_use = {});

  /// `life`: seconds from now on; 0: for ever. Errors: kFile, kResource (no space); ApiError where
  /// it is more than the limits let in.
  StoredFile add(const std::string& filename, const std::string& purpose, std::string_view content,
                 int64_t life = 0);
  /// Takes over the file at `path` of the same disk, whatever the limits.
  StoredFile take(const std::string& filename, const std::string& purpose,
                  const std::filesystem::path& path, int64_t life = 0);
  std::optional<StoredFile> find(const std::string& id);
  /// Oldest first.
  std::vector<StoredFile> list();
  std::filesystem::path path_of(const std::string& id) const { return folder_ / id; }
  /// False: there is none.
  bool remove(const std::string& id);

 private:
  StoredFile describe(StoredFile file);
  /// Room for so many bytes, which the caller gives back when they are described or lost.
  void reserve(int64_t bytes);
  void expire();
  std::filesystem::path description_of(const std::string& id) const {
    return folder_ / (id + ".json");
  }

  std::filesystem::path folder_;
  const FileLimits limits_;
  const std::function<bool(const std::string& id)> is_in_use_;
  mutable Mutex mutex_;
  std::vector<StoredFile> files_ SLUICE_GUARDED_BY(mutex_);
  int64_t reserved_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;  // of files that are being written
  size_t reserved_files_ SLUICE_GUARDED_BY(mutex_) = 0;
};

/// What is in a folder, in no order. Errors: kFile.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

/// "PREFIX" and 32 random hexadecimal digits.
std::string random_name(std::string_view prefix);
/// Whether `name` is one that random_name could have made: safe as a file's name.
bool is_random_name(std::string_view name, std::string_view prefix);

}  // namespace sluice::serve
