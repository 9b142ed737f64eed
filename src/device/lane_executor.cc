#include "src/device/lane_executor.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

namespace {
double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}
bool is_store(const Task& task) {
  return task.kind == TaskKind::kStoreKv || task.kind == TaskKind::kStoreActivations;
}
}  // namespace

LaneExecutor::LaneExecutor(TaskRunner& runner, std::stop_token cancel, const LaneTable& table,
                           bool keep_events)
    : runner_(runner), cancel_(std::move(cancel)), keep_events_(keep_events), lanes_(table.size()) {
  for (size_t i = 0; i < table.size(); ++i) {
    const Lane lane(i);
    const bool computes = table[i].computes();
    if (table[i].thread == LaneThread::kCaller) own_compute_.push_back(lane);
    if (table[i].thread != LaneThread::kOwn) continue;
    if (computes) other_compute_.push_back(lane);
    threads_.emplace_back(
        [this, lane, computes](std::stop_token stop) { lane_loop(lane, computes, stop); });
  }
}

LaneExecutor::~LaneExecutor() {
  {
    MutexLock lock(mutex_);
    for (LaneState& lane : lanes_) lane.queue.clear();
    wait_for_in_flight(lock);
    for (std::jthread& thread : threads_) thread.request_stop();
    for (LaneState& lane : lanes_) lane.may_start.notify_all();
  }
}

double LaneExecutor::seconds_since_start() const { return seconds(Clock::now() - origin_); }

bool LaneExecutor::all_done(const std::vector<TaskId>& ids) const {
  return std::all_of(ids.begin(), ids.end(), [&](TaskId id) SLUICE_REQUIRES(mutex_) {
    return id < first_id_ || (id - first_id_ < static_cast<TaskId>(done_.size()) &&
                              done_[static_cast<size_t>(id - first_id_)]);
  });
}

bool LaneExecutor::lacks_tasks() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const LaneState& lane) { return lane.is_used && lane.queue.empty(); });
}

// Takes columns until every lane that the pass uses has a task, or a route has to run first.
void LaneExecutor::refill() {
  try {
    awaited_ = kNoTask;
    while (has_columns_ && lacks_tasks()) {
      awaited_ = columns_->awaited();
      if (awaited_ != kNoTask && !all_done({awaited_})) return;
      for (Task& task : columns_->next_column()) {
        if (is_store(task)) stores_of_pass_.push_back(task.id);
        at(task.lane).queue.push_back(std::move(task));
      }
      drop(columns_->take_dropped());
      has_columns_ = columns_->has_column();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

// Those that have not begun. They end when what they wait for has: whoever takes their memory next
// waits for them alone, and others may still read there.
void LaneExecutor::drop(const std::vector<TaskId>& ids) {
  for (const TaskId id : ids)
    for (LaneState& lane : lanes_) {
      const auto found = std::find_if(lane.queue.begin(), lane.queue.end(),
                                      [&](const Task& task) { return task.id == id; });
      if (found == lane.queue.end()) continue;
      dropped_.push_back(std::move(*found));
      lane.queue.erase(found);
      break;
    }
  end_dropped();
}

// They may wait for one another.
void LaneExecutor::end_dropped() {
  const auto ended = [&](const Task& task) SLUICE_REQUIRES(mutex_) {
    const bool has_ended = all_done(task.waits);
    if (has_ended) mark_done(task.id);
    return has_ended;
  };
  while (std::erase_if(dropped_, ended) > 0) continue;
}

bool LaneExecutor::may_start(const LaneState& lane) const {
  return !lane.queue.empty() && all_done(lane.queue.front().waits);
}

// The caller, and the lanes that have something to do: a lane without would take a core from
// computing just to find that out.
void LaneExecutor::wake() {
  changed_.notify_all();
  for (LaneState& lane : lanes_)
    if (may_start(lane)) lane.may_start.notify_all();
}

void LaneExecutor::mark_done(TaskId id) {
  const auto index = static_cast<size_t>(id - first_id_);
  if (index >= done_.size()) done_.resize(index + 1, false);
  done_[index] = true;
  while (!done_.empty() && done_.front()) {
    done_.pop_front();
    ++first_id_;
  }
}

void LaneExecutor::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  has_columns_ = false;
  for (LaneState& lane : lanes_) lane.queue.clear();
  dropped_.clear();
}

void LaneExecutor::task_started(Lane lane) {
  LaneState& state = at(lane);
  if (state.in_flight++ == 0) state.busy_since = Clock::now();
}

void LaneExecutor::task_ended(const Task& task, Clock::time_point started,
                              std::exception_ptr error) {
  const Clock::time_point now = Clock::now();
  {
    const MutexLock lock(mutex_);
    LaneState& state = at(task.lane);
    if (--state.in_flight == 0) state.stats.busy_seconds += seconds(now - state.busy_since);
    ++state.stats.tasks;
    state.stats.bytes += task.bytes;
    if (error)
      fail(std::move(error));
    else
      mark_done(task.id);
    end_dropped();
    if (keep_events_) events_.push_back({task, seconds(started - origin_), seconds(now - origin_)});
    if (task.id == awaited_) refill();
    wake();  // with the mutex held: the executor may die as soon as it is free
  }
}

void LaneExecutor::start_transfer(const Task& task) {
  const Clock::time_point started = Clock::now();
  try {
    runner_.transfer(task, [this, task, started](std::exception_ptr error) {
      task_ended(task, started, error);
    });
  } catch (...) {
    task_ended(task, started, std::current_exception());
  }
}

void LaneExecutor::lane_loop(Lane lane, bool computes, std::stop_token stop) {
  MutexLock lock(mutex_);
  LaneState& state = at(lane);
  for (;;) {
    state.may_start.wait(
        lock, [&]() SLUICE_REQUIRES(mutex_) { return stop.stop_requested() || may_start(state); });
    if (stop.stop_requested()) return;
    const Task task = std::move(state.queue.front());
    state.queue.pop_front();
    task_started(lane);  // before anyone can see neither a queued task nor one in flight
    if (state.queue.empty() && has_columns_) {
      refill();
      wake();
    }
    lock.unlock();
    if (computes)
      run_compute(task);
    else
      start_transfer(task);
    lock.lock();
  }
}

// The first task of a compute lane whose waits have ended, taken from its queue; waits until there
// is one. Nothing when all compute lanes are empty or some lane failed.
std::optional<Task> LaneExecutor::next_compute() {
  MutexLock lock(mutex_);
  const Clock::time_point before = Clock::now();
  const auto ready = [&]() SLUICE_REQUIRES(mutex_) -> std::deque<Task>* {
    for (const Lane lane : own_compute_)
      if (may_start(at(lane))) return &at(lane).queue;
    return nullptr;
  };
  const auto nothing_left = [&]() SLUICE_REQUIRES(mutex_) {
    if (has_columns_) return false;
    for (const Lane lane : own_compute_)
      if (!at(lane).queue.empty()) return false;
    return true;
  };
  std::deque<Task>* queue = nullptr;
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
    return error_ || nothing_left() || (queue = ready()) != nullptr;
  });
  if (!own_compute_.empty())
    at(own_compute_.front()).stats.wait_seconds += seconds(Clock::now() - before);
  if (error_ || !queue) return std::nullopt;
  Task task = std::move(queue->front());
  queue->pop_front();
  task_started(task.lane);
  if (queue->empty() && has_columns_) {
    refill();
    wake();
  }
  return task;
}

void LaneExecutor::run_compute(const Task& task) {
  const Clock::time_point started = Clock::now();
  std::exception_ptr error;
  try {
    if (cancel_.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    runner_.compute(task);
  } catch (...) {
    error = std::current_exception();
  }
  task_ended(task, started, error);
}

void LaneExecutor::wait_for_in_flight(MutexLock& lock) {
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const LaneState& lane) { return lane.in_flight == 0; });
  });
}

// Whether the compute lanes of other threads have nothing left.
bool LaneExecutor::has_computed() const {
  return std::all_of(other_compute_.begin(), other_compute_.end(),
                     [&](Lane lane) SLUICE_REQUIRES(mutex_) {
                       const LaneState& state = lanes_[static_cast<size_t>(lane)];
                       return state.queue.empty() && state.in_flight == 0;
                     });
}

void LaneExecutor::run(std::vector<Task> tasks) {
  OneColumn columns(std::move(tasks));
  run(columns);
}

void LaneExecutor::run(ColumnSource& columns) {
  {
    const MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    columns_ = &columns;
    has_columns_ = columns.has_column();
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].is_used = columns.uses(Lane(i));
    stores_of_pass_.clear();
    refill();
    wake();
  }
  while (const std::optional<Task> task = next_compute()) run_compute(*task);
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
    return error_ || (all_done(stores_of_last_pass_) && has_computed());
  });
  stores_of_last_pass_ = std::move(stores_of_pass_);
  stores_of_pass_.clear();
  if (error_) {
    wait_for_in_flight(lock);
    std::rethrow_exception(error_);
  }
}

void LaneExecutor::settle() {
  MutexLock lock(mutex_);
  changed_.wait(lock,
                [&]() SLUICE_REQUIRES(mutex_) { return error_ || all_done(stores_of_last_pass_); });
  if (!error_) return;
  wait_for_in_flight(lock);
  std::rethrow_exception(error_);
}

void LaneExecutor::finish() {
  MutexLock lock(mutex_);
  for (LaneState& lane : lanes_) lane.queue.clear();
  wait_for_in_flight(lock);
  if (error_) std::rethrow_exception(error_);
}

LaneStats LaneExecutor::stats(Lane lane) const {
  const MutexLock lock(mutex_);
  return lanes_[static_cast<size_t>(lane)].stats;
}

}  // namespace sluice
