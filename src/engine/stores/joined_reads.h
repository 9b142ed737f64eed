#pragma once
// One completion for a group of reads: with the first error, once all have ended. Reads may end on
// any threads.
#include <exception>
#include <utility>

#include "io/async/file_engine.h"
#include "src/base/mutex.h"

namespace sluice {

class JoinedReads {
 public:
  /// `reads` of them, at least one.
  JoinedReads(int64_t reads, io::Completion done) : left_(reads), done_(std::move(done)) {}
  void read_done(std::exception_ptr error) {
    MutexLock lock(mutex_);
    if (error && !error_) error_ = std::move(error);
    if (--left_ > 0) return;
    const std::exception_ptr first = error_;
    lock.unlock();
    done_(first);
  }

 private:
  Mutex mutex_;
  int64_t left_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  io::Completion done_;
};

}  // namespace sluice
