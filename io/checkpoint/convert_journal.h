#pragma once
// The journal of a conversion, sluice-store.journal in its destination: one JSON line for the run,
// then one for each finished group, each on the disk before the next group begins. A torn last line
// (the process was killed) is dropped. The folder's lock (io/files/folder_lock.h) keeps a second
// conversion out. Private to conversion; one thread.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/owned_fd.h"

namespace sluice::io {

constexpr std::string_view kJournalName = "sluice-store.journal";

/// A file of the store that is complete.
struct FinishedGroup {
  std::string name;
  std::string file;
  int64_t bytes = 0;
  uint32_t checksum = 0;
};

class ConvertJournal {
 public:
  /// Opens or makes the journal in `folder`. Errors: kFile, kResource.
  explicit ConvertJournal(const std::filesystem::path& folder);

  /// Which run wrote it; nothing when it is new or not a journal of this version.
  const std::optional<std::string>& identity() const noexcept { return identity_; }
  const std::vector<FinishedGroup>& finished() const noexcept { return finished_; }
  /// Empties it and starts with `identity`.
  void restart(const std::string& identity);
  void add(const FinishedGroup& group);
  /// Deletes the file: the store's index has taken over.
  void remove();

 private:
  void load(const std::string& text);
  void append(const std::string& line);
  std::filesystem::path path_;
  OwnedFd fd_;
  std::optional<std::string> identity_;
  std::vector<FinishedGroup> finished_;
  int64_t end_ = 0;  // of the last whole line
};

}  // namespace sluice::io
