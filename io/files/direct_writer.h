#pragma once
// Writes one new file from start to end at the disk's speed: direct I/O from two threads out of a
// fixed ring of buffers, which the caller fills in place; ordinary writes where direct I/O is
// refused. The file's size is set exactly at the end. Used by conversion and by
// write_sharded_safetensors. One thread calls; the writing threads are inside.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <thread>
#include <vector>

#include "io/files/aligned_memory.h"
#include "io/files/owned_fd.h"
#include "src/base/mutex.h"

namespace sluice::io {

class DirectWriter {
 public:
  enum class Checksum { kNone, kCrc32c };

  /// Creates (or empties) the file and reserves `expected_bytes` on the disk where the file system
  /// can. Errors: kFile (cannot be created), kResource (no space).
  DirectWriter(std::filesystem::path path, int64_t expected_bytes, Checksum checksum);
  /// Without finish(): stops; the incomplete file stays, for the caller to remove or overwrite.
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  /// Free memory for the bytes that come next: at least 1, at most kBufferBytes. May wait for the
  /// disk. Errors: what a writing thread met (kResource: disk full or file too large; kFile).
  std::span<std::byte> space();
  /// The first `bytes` of space() are filled.
  void advance(size_t bytes);
  /// Copies `bytes` in.
  void append(std::span<const std::byte> bytes);
  void append_zeros(int64_t bytes);
  /// Waits until all is written, sets the size, and waits until it is on the disk. Same errors.
  void finish();

  /// Bytes given so far.
  int64_t bytes() const noexcept { return bytes_; }
  /// CRC32C of the bytes given so far; 0 without Checksum::kCrc32c.
  uint32_t checksum() const noexcept { return checksum_; }

 private:
  struct Slot {
    AlignedMemory memory;
    int64_t offset = 0;    // in the file
    size_t bytes = 0;      // to write; a multiple of 4096
    bool is_full = false;  // waits for a writing thread, or is being written
  };
  void reserve(int64_t expected_bytes);
  Slot& current_slot();  // that the caller fills
  void submit();
  void wait_all();
  void write_slots();
  void write(const Slot& slot);
  void stop() noexcept;
  [[noreturn]] void fail(const char* action, int error) const;

  const std::filesystem::path path_;
  const bool has_checksum_;
  OwnedFd fd_;
  int64_t bytes_ = 0;
  uint32_t checksum_ = 0;
  size_t filled_ = 0;  // of the current slot
  std::atomic<bool> is_direct_{true};

  Mutex mutex_;
  Condition changed_;
  // With mutex_ held, but for the memory of the caller's current slot and of claimed ones.
  std::vector<Slot> slots_;
  size_t submitted_ SLUICE_GUARDED_BY(mutex_) =
      0;  // slots filled so far; the current one is submitted_ % slots_.size()
  size_t claimed_ SLUICE_GUARDED_BY(mutex_) = 0;  // by writing threads
  bool is_stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace sluice::io
