#pragma once
// The files that callers have uploaded and batches have written (/v1/files): each a file of bytes
// and one that describes it, in a folder of the server's. A file is there, whole, when its
// description is; what a crash left half is removed at the next start. Thread safe.
#include <filesystem>
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
};

class FileStore {
 public:
  /// Makes the folder where it is missing. Errors: kFile.
  explicit FileStore(std::filesystem::path folder);

  /// Errors: kFile, kResource (no space).
  StoredFile add(const std::string& filename, const std::string& purpose, std::string_view content);
  /// Takes over the file at `path` of the same disk.
  StoredFile take(const std::string& filename, const std::string& purpose,
                  const std::filesystem::path& path);
  std::optional<StoredFile> find(const std::string& id) const;
  /// Oldest first.
  std::vector<StoredFile> list() const;
  std::filesystem::path path_of(const std::string& id) const { return folder_ / id; }
  /// False: there is none.
  bool remove(const std::string& id);

 private:
  StoredFile describe(std::string id, const std::string& filename, const std::string& purpose,
                      int64_t bytes);
  std::filesystem::path description_of(const std::string& id) const {
    return folder_ / (id + ".json");
  }

  std::filesystem::path folder_;
  mutable Mutex mutex_;
  std::vector<StoredFile> files_ SLUICE_GUARDED_BY(mutex_);
};

/// What is in a folder, in no order. Errors: kFile.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

/// "PREFIX" and 32 random hexadecimal digits.
std::string random_name(std::string_view prefix);
/// Whether `name` is one that random_name could have made: safe as a file's name.
bool is_random_name(std::string_view name, std::string_view prefix);

}  // namespace sluice::serve
