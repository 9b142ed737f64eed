#include "src/engine/stores/foreign_arrivals.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/joined_reads.h"
#include "src/engine/stores/panel_quantiser.h"

namespace sluice {

ForeignArrivals::ForeignArrivals(io::FileEngine& engine, Buffer memory, int64_t slot_bytes,
                                 int threads)
    : engine_(engine),
      memory_(std::move(memory)),
      slot_bytes_(static_cast<size_t>(slot_bytes)),
      threads_(threads) {
  for (size_t i = 0; i < memory_.span().size() / slot_bytes_; ++i) free_.push_back(i);
  SLUICE_ASSERT(!free_.empty(), "the plan makes room for what arrives");
  worker_ = std::jthread([this](const std::stop_token& stop) { repack_arrived(stop); });
}

ForeignArrivals::~ForeignArrivals() {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return unfinished_ == 0; });
    worker_.request_stop();
    changed_.notify_all();
  }
  worker_.join();
}

int64_t ForeignArrivals::read_bytes(const ForeignMatrix& matrix, int64_t first_row, int64_t rows,
                                    int64_t slot_bytes) {
  int64_t bytes = 0;
  for (const ForeignRun& piece : pieces_of(matrix, first_row, rows, slot_bytes))
    bytes += window_bytes(matrix, matrix.run_of(piece));
  return bytes;
}

ForeignArrivals::Repacked ForeignArrivals::repacked() const {
  const MutexLock lock(mutex_);
  return repacked_;
}

void ForeignArrivals::read(const Arrival& arrival, io::Completion done) {
  const std::vector<ForeignRun> pieces = pieces_of(*arrival.matrix, arrival.first_row, arrival.rows,
                                                   static_cast<int64_t>(slot_bytes_));
  if (pieces.size() == 1) return take({arrival, pieces.front(), std::move(done), 0, nullptr});
  const auto joined = std::make_shared<JoinedReads>(std::ssize(pieces), std::move(done));
  for (const ForeignRun& piece : pieces)
    take({arrival, piece,
          [joined](std::exception_ptr error) { joined->read_done(std::move(error)); }, 0, nullptr});
}

void ForeignArrivals::take(Work work) {
  {
    const MutexLock lock(mutex_);
    ++unfinished_;
    if (free_.empty()) {
      waiting_.push_back(std::move(work));
      return;
    }
    work.slot = free_.back();
    free_.pop_back();
  }
  start(std::move(work));
}

void ForeignArrivals::start(Work work) {
  const ForeignMatrix& matrix = *work.arrival.matrix;
  const std::vector<ForeignMatrix::Range> ranges = matrix.ranges(matrix.run_of(work.piece));
  std::vector<io::Extent> extents;
  std::byte* to = slot(work.slot);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto [offset, bytes] = ranges[i];
    const io::Window window = io::aligned_window(offset, bytes);
    extents.push_back({work.arrival.files[static_cast<size_t>(matrix.parts[i]->file_index)],
                       window.offset, window.bytes, to, offset + bytes - window.offset});
    to += window.bytes;
  }
  SLUICE_ASSERT(to <= slot(work.slot) + slot_bytes_, "the plan sizes the slots");
  const auto shared = std::make_shared<Work>(std::move(work));  // completions can be copied
  engine_.read(extents, [this, shared](std::exception_ptr error) {
    shared->error = std::move(error);
    const MutexLock lock(mutex_);
    arrived_.push_back(std::move(*shared));
    changed_.notify_all();
  });
}

// Of rows the place of the piece's; of columns all that the matrix becomes.
std::span<std::byte> ForeignArrivals::place_of(const Work& work) {
  const auto& [name, matrix, first_row, rows, files, to] = work.arrival;
  if (matrix->cut == ForeignMatrix::Cut::kColumns) return to;
  return to.subspan(
      static_cast<size_t>(imported_row_bytes(*matrix, work.piece.first_row - first_row)),
      static_cast<size_t>(imported_row_bytes(*matrix, work.piece.rows)));
}

std::exception_ptr ForeignArrivals::repack(const Work& work) const {
  if (work.error) return work.error;
  const ForeignMatrix& matrix = *work.arrival.matrix;
  try {
    ForeignBytes parts;
    const std::byte* from = slot(work.slot);
    for (const auto& [offset, bytes] : matrix.ranges(matrix.run_of(work.piece))) {
      const io::Window window = io::aligned_window(offset, bytes);
      parts.push_back({from + (offset - window.offset), static_cast<size_t>(bytes)});
      from += window.bytes;
    }
    import_piece(*work.arrival.name, matrix, work.piece,
                 panel_quantiser(kernels::RangeSearch::kClip), threads_, parts, place_of(work));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void ForeignArrivals::repack_arrived(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(
        lock, [&]() SLUICE_REQUIRES(mutex_) { return !arrived_.empty() || stop.stop_requested(); });
    if (arrived_.empty()) return;
    Work work = std::move(arrived_.front());
    arrived_.pop_front();
    lock.unlock();
    const auto started = std::chrono::steady_clock::now();
    const std::exception_ptr error = repack(work);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    lock.lock();
    repacked_.bytes += std::ssize(place_of(work)) * work.piece.cols / work.arrival.matrix->cols;
    repacked_.seconds += took.count();
    std::optional<Work> next;
    if (waiting_.empty()) {
      free_.push_back(work.slot);
    } else {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      next->slot = work.slot;
    }
    lock.unlock();
    if (next) start(std::move(*next));
    work.done(error);
    lock.lock();
    if (--unfinished_ == 0) changed_.notify_all();
  }
}

}  // namespace sluice
