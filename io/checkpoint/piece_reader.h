#pragma once
// Reads a known list of byte ranges ("pieces") of files in order, ahead of the one who consumes
// them, at the disk's speed: direct I/O from a few threads into a fixed ring of buffers, through
// the page cache (dropping what was read) where direct I/O is refused. Used by conversion and
// verification. One consumer thread calls next(); the reading threads are inside.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "io/files/aligned_memory.h"
#include "src/base/mutex.h"

namespace sluice::io {

/// One range that is read at once.
struct Piece {
  int32_t file_index = 0;
  int64_t offset = 0;
  int64_t bytes = 0;  // 1 to kPieceBytes
};

constexpr int64_t kPieceBytes =
    8 << 20;  // with kReadThreads in flight: within noise of the disk's peak

/// [offset, offset + bytes) of a file in pieces.
void append_pieces(std::vector<Piece>& pieces, int32_t file_index, int64_t offset, int64_t bytes);

class PieceReader {
 public:
  /// Makes a piece's bytes instead of reading them; called from several threads.
  using Maker = std::function<void(const Piece& piece, std::span<std::byte> to)>;

  /// Starts reading at once. Pieces name `files` by position. With `make`, no file is opened.
  PieceReader(std::vector<std::filesystem::path> files, std::vector<Piece> pieces,
              Maker make = nullptr);
  ~PieceReader();
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;

  /// The bytes of the next piece, valid until the next call. Must not be called more often than
  /// there are pieces. Errors: kFile (open, read, early end of file) with path and offset.
  std::span<const std::byte> next();

 private:
  struct Slot {
    AlignedMemory memory;
    std::span<const std::byte> bytes;
    std::exception_ptr error;
    bool is_ready = false;
  };
  void read_pieces();
  void stop();

  const std::vector<std::filesystem::path> files_;
  const std::vector<Piece> pieces_;
  const Maker make_;
  Mutex mutex_;
  Condition changed_;
  // With mutex_ held, but for the memory of those that a reading thread has claimed.
  std::vector<Slot> slots_;
  size_t claimed_ SLUICE_GUARDED_BY(mutex_) = 0;  // pieces given to a reading thread
  size_t consumed_ SLUICE_GUARDED_BY(mutex_) =
      0;  // pieces handed out by next(); the last one is still in use
  bool is_stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace sluice::io
