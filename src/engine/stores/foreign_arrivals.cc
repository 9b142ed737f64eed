#include "src/engine/stores/foreign_arrivals.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/engine/stores/foreign_import.h"
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

int64_t ForeignArrivals::window_bytes(const ForeignMatrix& matrix, int64_t first_row,
                                      int64_t rows) {
  const ForeignMatrix::Run run = matrix.run_of(first_row, rows);
  return io::aligned_window(run.offset, run.bytes).bytes;
}

ForeignArrivals::Repacked ForeignArrivals::repacked() const {
  const MutexLock lock(mutex_);
  return repacked_;
}

void ForeignArrivals::read(const Arrival& arrival, io::Completion done) {
  Work work{arrival, std::move(done), 0, nullptr};
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
  const ForeignMatrix::Run run =
      work.arrival.matrix->run_of(work.arrival.first_row, work.arrival.rows);
  const io::Window window = io::aligned_window(run.offset, run.bytes);
  SLUICE_ASSERT(static_cast<size_t>(window.bytes) <= slot_bytes_, "the plan sizes the slots");
  const io::Extent extent{work.arrival.file, window.offset, window.bytes, slot(work.slot),
                          run.offset + run.bytes - window.offset};
  const auto shared = std::make_shared<Work>(std::move(work));  // completions can be copied
  engine_.read({&extent, 1}, [this, shared](std::exception_ptr error) {
    shared->error = std::move(error);
    const MutexLock lock(mutex_);
    arrived_.push_back(std::move(*shared));
    changed_.notify_all();
  });
}

std::exception_ptr ForeignArrivals::repack(const Work& work) const {
  if (work.error) return work.error;
  const Arrival& arrival = work.arrival;
  const ForeignMatrix::Run run = arrival.matrix->run_of(arrival.first_row, arrival.rows);
  const io::Window window = io::aligned_window(run.offset, run.bytes);
  try {
    import_rows(*arrival.name, *arrival.matrix, arrival.first_row, arrival.rows,
                panel_quantiser(kernels::RangeSearch::kClip), threads_,
                {slot(work.slot) + (run.offset - window.offset), static_cast<size_t>(run.bytes)},
                arrival.to);
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
    repacked_.bytes += std::ssize(work.arrival.to);
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
