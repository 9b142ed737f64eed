#include "tests/device/scattered_runner.h"

#include <algorithm>
#include <string>

#include "src/base/error.h"

namespace sluice {

namespace {
Error failure(TaskId id) { return Error(ErrorKind::kDevice, "task " + std::to_string(id)); }
}  // namespace

Task make_task(TaskId id, TaskKind kind, std::vector<TaskId> waits) {
  const bool is_store = kind == TaskKind::kStoreKv || kind == TaskKind::kStoreActivations;
  Task task;
  task.id = id;
  task.kind = kind;
  task.lane = kind == TaskKind::kCompute ? Lane::kDeviceCompute
              : is_store                 ? Lane::kDiskWrite
                                         : Lane::kDiskRead;
  task.bytes = kind == TaskKind::kCompute ? 0 : 100;
  if (kind == TaskKind::kLoadWeights)
    task.work = PartLoad{};
  else if (kind != TaskKind::kCompute)
    task.work = StateMove{};
  task.waits = std::move(waits);
  return task;
}

ScatteredRunner::ScatteredRunner(unsigned seed) : random_(seed) {
  for (int i = 0; i < 3; ++i)
    threads_.emplace_back([this](std::stop_token stop) { finish_loop(stop); });
}

ScatteredRunner::~ScatteredRunner() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void ScatteredRunner::note(TaskId id, bool is_end) {
  history_.push_back({id, is_end});
  changed_.notify_all();
}

void ScatteredRunner::compute(const Task& task) {
  {
    std::lock_guard lock(mutex_);
    note(task.id, false);
  }
  if (const auto action = actions_.find(task.id); action != actions_.end()) action->second();
  if (throws_.contains(task.id)) throw failure(task.id);
  std::lock_guard lock(mutex_);
  note(task.id, true);
}

void ScatteredRunner::transfer(const Task& task, std::function<void(std::exception_ptr)> done) {
  std::lock_guard lock(mutex_);
  note(task.id, false);
  if (throws_.contains(task.id)) throw failure(task.id);
  ++in_flight_;
  pending_.push_back({task.id, std::move(done)});
  changed_.notify_all();
}

void ScatteredRunner::finish_loop(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto can_end = [&](const Pending& pending) { return !held_.contains(pending.id); };
    if (!changed_.wait(lock, stop,
                       [&] { return std::any_of(pending_.begin(), pending_.end(), can_end); }))
      return;
    std::shuffle(pending_.begin(), pending_.end(), random_);
    const auto chosen = std::find_if(pending_.begin(), pending_.end(), can_end);
    const Pending pending = std::move(*chosen);
    pending_.erase(chosen);
    note(pending.id, true);
    --in_flight_;
    lock.unlock();
    pending.done(fails_.contains(pending.id) ? std::make_exception_ptr(failure(pending.id))
                                             : nullptr);
    lock.lock();
  }
}

void ScatteredRunner::let_go() {
  std::lock_guard lock(mutex_);
  held_.clear();
  changed_.notify_all();
}

std::vector<ScatteredRunner::Record> ScatteredRunner::history() const {
  std::lock_guard lock(mutex_);
  return history_;
}

bool ScatteredRunner::has_started(TaskId id) const {
  std::lock_guard lock(mutex_);
  return std::any_of(history_.begin(), history_.end(),
                     [&](const Record& record) { return record.id == id; });
}

int ScatteredRunner::in_flight() const {
  std::lock_guard lock(mutex_);
  return in_flight_;
}

void ScatteredRunner::wait_for_start(TaskId id) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::any_of(history_.begin(), history_.end(),
                       [&](const Record& record) { return record.id == id; });
  });
}

}  // namespace sluice
