#pragma once
// A TaskRunner whose transfers end on threads of its own, in random order, and which keeps what
// happened when. A task can be made to throw, to end with an error, or to wait until the test lets
// it go.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stop_token>
#include <thread>
#include <vector>

#include "src/device/lane_executor.h"

namespace sluice {

// The kinds that tests speak of.
constexpr auto kCompute = TaskKind::kCompute;
constexpr auto kLoad = TaskKind::kLoadWeights;
constexpr auto kStore = TaskKind::kStoreKv;

class ScatteredRunner final : public TaskRunner {
 public:
  explicit ScatteredRunner(unsigned seed);
  ~ScatteredRunner() override;

  void compute(const Task& task) override;
  void transfer(const Task& task, std::function<void(std::exception_ptr)> done) override;

  /// Before the run: the task throws where it starts, or its `done` gets an error. The text is the
  /// task's id.
  void throw_at(TaskId id) { throws_.insert(id); }
  void fail_at(TaskId id) { fails_.insert(id); }
  /// Before the run: the task does not end before let_go() (a transfer), or runs `action`
  /// (compute).
  void hold(TaskId id) { held_.insert(id); }
  void at_compute(TaskId id, std::function<void()> action) { actions_[id] = std::move(action); }
  void let_go();

  /// Order of starts and ends: id in starts as id, in ends too; every task appears at most once in
  /// each.
  struct Record {
    TaskId id;
    bool is_end;
  };
  std::vector<Record> history() const;
  bool has_started(TaskId id) const;
  int in_flight() const;
  /// Waits until the task has started.
  void wait_for_start(TaskId id);

 private:
  struct Pending {
    TaskId id;
    std::function<void(std::exception_ptr)> done;
  };
  void note(TaskId id, bool is_end);  // with mutex_ held
  void finish_loop(std::stop_token stop);

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::mt19937 random_;
  std::vector<Pending> pending_;
  std::set<TaskId> throws_, fails_, held_;
  std::map<TaskId, std::function<void()>> actions_;
  std::vector<Record> history_;
  int in_flight_ = 0;
  std::vector<std::jthread> threads_;  // last: they use everything above
};

/// A task of a hand-written stream.
Task make_task(TaskId id, TaskKind kind, std::vector<TaskId> waits);

}  // namespace sluice
