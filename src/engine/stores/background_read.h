#pragma once
// One read at a time beside what its caller does: start() and later wait(). For one thread; a read
// under way is waited for at the end.
#include <exception>
#include <span>
#include <utility>

#include "io/async/file_engine.h"
#include "src/base/mutex.h"

namespace sluice {

class BackgroundRead {
 public:
  ~BackgroundRead() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return !is_running_; });
  }
  /// `extents` are needed during the call, their memory until wait() has returned.
  void start(io::FileEngine& engine, std::span<const io::Extent> extents) {
    {
      const MutexLock lock(mutex_);
      is_running_ = true;
    }
    engine.read(extents, [this](std::exception_ptr error) {
      const MutexLock lock(mutex_);
      error_ = std::move(error);
      is_running_ = false;
      changed_.notify_all();
    });
  }
  /// Errors: those of the read.
  void wait() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return !is_running_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool is_running_ SLUICE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
