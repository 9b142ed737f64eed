#pragma once
// Runs a schedule's tasks on the lanes of a table: those with a thread of their own there, and the
// compute lanes of the caller's thread, of which it takes whichever has a task that may start (the
// first in the table goes first). A lane starts its tasks in order as soon as what they wait for is
// done. Lanes never wait for each other beyond that (no barriers). Invariants: a task starts after
// all its waits ended; the first error stops every lane and is rethrown by run(). Thread safety:
// one thread calls run() and finish(); stats() and events() from that thread too.
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "src/base/mutex.h"
#include "src/schedule/column_source.h"

namespace sluice {

/// What the tasks do; made by the engine.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  /// On the thread that called run(); tasks of the host's compute lane, where that has a thread of
  /// its own, from that thread meanwhile. May throw.
  virtual void compute(const Task& task) = 0;
  /// Starts a transfer and returns; `done` is called once, from any thread, also when it fails. May
  /// throw instead.
  virtual void transfer(const Task& task, std::function<void(std::exception_ptr)> done) = 0;
};

/// What a lane has done since the executor began.
struct LaneStats {
  int64_t tasks = 0;
  int64_t bytes = 0;
  double busy_seconds = 0;  ///< time with at least one of its tasks running
  double wait_seconds = 0;  ///< of the caller's first compute lane: it stood waiting for others
};

/// For --trace: one task's time on its lane, seconds since the executor was made.
struct TaskEvent {
  Task task;
  double start_seconds = 0;
  double end_seconds = 0;
};

class LaneExecutor {
 public:
  /// `cancel` is looked at between tasks; a cancelled run throws kCancelled. With `keep_events`,
  /// every task's times are kept for events().
  LaneExecutor(TaskRunner& runner, std::stop_token cancel, const LaneTable& table,
               bool keep_events);
  ~LaneExecutor();
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  /// Runs one pass, whose columns it takes when they are needed (from any of its threads, one at a
  /// time): returns when its last compute task has ended (loads for the next pass may still
  /// be under way). Stores of the pass before have ended by then. Rethrows the first error of any
  /// lane, after all transfers ended, and the same error again whenever it is called after that.
  void run(ColumnSource& columns);
  void run(std::vector<Task> tasks);
  /// Waits until the stores of the last pass have ended. Rethrows the first error of any lane.
  void settle();
  /// Drops what has not started and waits for what has. Rethrows the first error of a store.
  void finish();

  LaneStats stats(Lane lane) const;
  /// Not while a pass runs (so without the lock).
  const std::vector<TaskEvent>& events() const noexcept SLUICE_NOT_ANALYSED { return events_; }
  double seconds_since_start() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct LaneState {
    std::deque<Task> queue;
    bool is_used = false;  // by the pass under way
    Condition may_start;   // of a lane with a thread: its first task, or to stop
    LaneStats stats;
    int in_flight = 0;
    Clock::time_point busy_since;
  };

  void lane_loop(Lane lane, bool computes, std::stop_token stop);
  LaneState& at(Lane lane) SLUICE_REQUIRES(mutex_) { return lanes_[static_cast<size_t>(lane)]; }
  bool has_computed() const SLUICE_REQUIRES(mutex_);
  void start_transfer(const Task& task);
  std::optional<Task> next_compute();
  void refill() SLUICE_REQUIRES(mutex_);
  void drop(const std::vector<TaskId>& ids) SLUICE_REQUIRES(mutex_);
  void end_dropped() SLUICE_REQUIRES(mutex_);
  bool lacks_tasks() const SLUICE_REQUIRES(mutex_);
  void run_compute(const Task& task);
  void task_started(Lane lane) SLUICE_REQUIRES(mutex_);
  void task_ended(const Task& task, Clock::time_point started, std::exception_ptr error);
  bool all_done(const std::vector<TaskId>& ids) const SLUICE_REQUIRES(mutex_);
  bool may_start(const LaneState& lane) const SLUICE_REQUIRES(mutex_);
  void wake() SLUICE_REQUIRES(mutex_);
  void mark_done(TaskId id) SLUICE_REQUIRES(mutex_);
  void fail(std::exception_ptr error) SLUICE_REQUIRES(mutex_);
  void wait_for_in_flight(MutexLock& lock) SLUICE_REQUIRES(mutex_);

  TaskRunner& runner_;
  std::stop_token cancel_;
  bool keep_events_;
  std::vector<Lane> own_compute_;    // the caller's, in the table's order
  std::vector<Lane> other_compute_;  // with threads of their own
  Clock::time_point origin_ = Clock::now();

  mutable Mutex mutex_;
  Condition changed_;  // what the caller's thread waits for
  std::vector<LaneState> lanes_ SLUICE_GUARDED_BY(mutex_);
  std::deque<bool> done_ SLUICE_GUARDED_BY(mutex_);  // of task ids from first_id_ on
  TaskId first_id_ SLUICE_GUARDED_BY(mutex_) = 0;
  ColumnSource* columns_ SLUICE_GUARDED_BY(mutex_) = nullptr;  // of the pass under way
  bool has_columns_ SLUICE_GUARDED_BY(mutex_) = false;         // that were not taken
  TaskId awaited_ SLUICE_GUARDED_BY(mutex_) = kNoTask;         // what the next of them waits for
  std::vector<Task> dropped_ SLUICE_GUARDED_BY(mutex_);        // whose waits have not all ended
  std::vector<TaskId> stores_of_pass_ SLUICE_GUARDED_BY(mutex_);
  std::vector<TaskId> stores_of_last_pass_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  std::vector<TaskEvent> events_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace sluice
