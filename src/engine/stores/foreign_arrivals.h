#pragma once
// Rows that another tool has packed, on their way from the disk: read as they lie into a slot, in
// pieces where they are more, and repacked from there to where kernels want them. A thread of its
// own takes them as they come, and some more help it, so that the next ones are read meanwhile.
// read() may be called from any thread.
#include <deque>
#include <thread>
#include <vector>

#include "io/async/file_engine.h"
#include "src/base/arena.h"
#include "src/base/mutex.h"
#include "src/model/foreign/foreign.h"

namespace sluice {

/// Some rows of a matrix; all where it is cut by columns.
struct Arrival {
  const std::string* name = nullptr;  ///< of the tensor, for errors
  const ForeignMatrix* matrix = nullptr;
  int64_t first_row = 0;  ///< at a panel
  int64_t rows = 0;
  std::span<const io::FileId> files;  ///< the checkpoint's, as its tensors number them
  std::span<std::byte> to;            ///< imported_row_bytes() of them
};

class ForeignArrivals {
 public:
  /// `memory` is cut into slots of `slot_bytes`, each at least smallest_piece_bytes() of whatever
  /// comes, or window_bytes() of all of its rows.
  /// `threads` repack. The engine outlives it.
  ForeignArrivals(io::FileEngine& engine, Buffer memory, int64_t slot_bytes, int threads);
  /// Everything asked for has been done.
  ~ForeignArrivals();
  ForeignArrivals(const ForeignArrivals&) = delete;
  ForeignArrivals& operator=(const ForeignArrivals&) = delete;

  /// Starts, when a slot is free; `done` is called once, by a thread of this or of the engine's.
  void read(const Arrival& arrival, io::Completion done);

  /// What was repacked so far.
  struct Repacked {
    int64_t bytes = 0;   ///< as they became
    double seconds = 0;  ///< of the thread that takes them
  };
  Repacked repacked() const;

  /// Bytes that are read for some rows in such slots: whole blocks of the files.
  static int64_t read_bytes(const ForeignMatrix& matrix, int64_t first_row, int64_t rows,
                            int64_t slot_bytes);

 private:
  struct Work {
    Arrival arrival;
    ForeignRun piece;
    io::Completion done;
    size_t slot = 0;
    std::exception_ptr error;
  };
  void take(Work work);
  void start(Work work);
  void repack_arrived(const std::stop_token& stop);
  std::exception_ptr repack(const Work& work) const;
  static std::span<std::byte> place_of(const Work& work);
  std::byte* slot(size_t index) const { return memory_.data() + index * slot_bytes_; }

  io::FileEngine& engine_;
  const Buffer memory_;
  const size_t slot_bytes_;
  const int threads_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<size_t> free_ SLUICE_GUARDED_BY(mutex_);
  std::deque<Work> waiting_ SLUICE_GUARDED_BY(mutex_);  // for a slot
  std::deque<Work> arrived_ SLUICE_GUARDED_BY(mutex_);  // in theirs
  size_t unfinished_ SLUICE_GUARDED_BY(mutex_) = 0;
  Repacked repacked_ SLUICE_GUARDED_BY(mutex_);
  std::jthread worker_;
};

}  // namespace sluice
