#pragma once
// Threads that run what is posted to them: at once, or at a time. With one thread, in order.
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "src/base/mutex.h"

namespace sluice::http {

class Crew {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;

  /// `name`: of the threads, up to 15 characters.
  Crew(std::string name, int threads);
  /// finish().
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// Tasks don't throw. From any thread; after finish() a task is dropped.
  void post(Task task);
  /// Not before `time`; dropped when the crew finishes before.
  void post_at(Clock::time_point time, Task task);
  /// Runs what was posted, then joins. Not from a task.
  void finish();

 private:
  void work();

  Mutex mutex_;
  Condition changed_;
  std::deque<Task> tasks_ SLUICE_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, Task> later_ SLUICE_GUARDED_BY(mutex_);
  bool is_finishing_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sluice::http
