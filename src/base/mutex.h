#pragma once
// Locks that the compiler checks: clang's thread-safety analysis (scripts/check_threads.py, in CI)
// refuses a member that is touched without its lock. Other compilers see the standard's own.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#if defined(__clang__)
#define SLUICE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SLUICE_THREAD_ATTRIBUTE(x)
#endif

/// Behind a member: read and written with `mutex` held only.
#define SLUICE_GUARDED_BY(mutex) SLUICE_THREAD_ATTRIBUTE(guarded_by(mutex))
/// Behind a function, or a lambda's parameters: called with it held.
#define SLUICE_REQUIRES(...) SLUICE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// Behind a function: called without it, since it takes it or calls what may.
#define SLUICE_EXCLUDES(...) SLUICE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define SLUICE_ACQUIRES(...) SLUICE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SLUICE_RELEASES(...) SLUICE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
/// Behind a function whose locking the analysis can't follow; a comment says why.
#define SLUICE_NOT_ANALYSED SLUICE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace sluice {

/// std::mutex.
class SLUICE_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  /// Tells the analysis, where whoever runs this holds it.
  void assert_held() const SLUICE_THREAD_ATTRIBUTE(assert_capability(this)) {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a Mutex while it lives, and may give it back in between (std::unique_lock).
class SLUICE_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLUICE_ACQUIRES(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() SLUICE_RELEASES() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() SLUICE_ACQUIRES() { lock_.lock(); }
  void unlock() SLUICE_RELEASES() { lock_.unlock(); }

 private:
  friend class Condition;
  friend class StoppableCondition;
  std::unique_lock<std::mutex> lock_;
};

/// std::condition_variable. A predicate says what it needs: [&]() SLUICE_REQUIRES(mutex_) {...}.
class Condition {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }
  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  template <typename Predicate>
  void wait(MutexLock& lock, Predicate holds) {
    changed_.wait(lock.lock_, std::move(holds));
  }
  template <typename TimePoint>
  void wait_until(MutexLock& lock, TimePoint time) {
    changed_.wait_until(lock.lock_, time);
  }
  /// Whether the predicate holds at last.
  template <typename Duration, typename Predicate>
  bool wait_for(MutexLock& lock, Duration time, Predicate holds) {
    return changed_.wait_for(lock.lock_, time, std::move(holds));
  }

 private:
  std::condition_variable changed_;
};

/// std::condition_variable_any, whose waits end when a stop is asked for. All give whether the
/// predicate holds at last.
class StoppableCondition {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }
  template <typename Predicate>
  bool wait(MutexLock& lock, std::stop_token stop, Predicate holds) {
    return changed_.wait(lock.lock_, std::move(stop), std::move(holds));
  }
  template <typename Duration, typename Predicate>
  bool wait_for(MutexLock& lock, std::stop_token stop, Duration time, Predicate holds) {
    return changed_.wait_for(lock.lock_, std::move(stop), time, std::move(holds));
  }

 private:
  std::condition_variable_any changed_;
};

}  // namespace sluice
