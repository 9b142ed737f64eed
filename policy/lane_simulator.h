#pragma once
// Any machine's lanes by discrete events: each lane of a table takes its tasks in order, a task
// starts when its lane is free and all that it waits for has ended, and takes as long as the costs
// say. Nothing here knows what the tasks are for, nor which lanes a machine has.
#include <deque>
#include <optional>
#include <vector>

#include "policy/lane_sharing.h"
#include "src/schedule/column_source.h"

namespace sluice::policy {

/// What tasks take, and lanes from each other.
class LaneCosts {
 public:
  virtual ~LaneCosts() = default;
  /// At the lane's full rate. `stood_idle`: the lane had nothing to do just before.
  virtual double seconds(const Task& task, bool stood_idle) const = 0;
  /// False while another lane has all of what this one needs.
  virtual bool may_start(Lane, const LaneSet&) const { return true; }
  /// Share of its full rate that a lane has beside those that run, above 0.
  virtual double share(Lane, const LaneSet&) const { return 1; }
  /// Bytes of one memory that all lanes share, moved by the task; all that want more of it than
  /// memory_rate() get it in proportion.
  virtual double memory_bytes(const Task&) const { return 0; }
  virtual double memory_rate() const { return 1; }
};

/// A task with its times.
struct SimulatedTask {
  Task task;
  double start_seconds = 0;
  double end_seconds = 0;
};

/// What came of simulated passes.
struct Simulation {
  double seconds = 0;
  std::vector<double> pass_ends;           ///< when each pass's last compute task ended
  std::vector<PerLane<double>> pass_busy;  ///< by pass, seconds that each lane was busy for it
  /// Of simulate(): that the device's lane was held, and of these the host's for rows in place.
  std::vector<double> pass_held_seconds;
  std::vector<double> pass_inplace_seconds;
  std::vector<double> pass_host_memory_bytes;  ///< of the shared memory, moved for it by all lanes
  double hand_overs = 0;     ///< of simulate(): times that the host waits for the device, in all
  uint64_t stream_hash = 0;  ///< fold_task over the stream walked
  std::vector<SimulatedTask> tasks;  ///< when asked for

  double busy_seconds(Lane lane) const noexcept;
};

class LaneSimulator {
 public:
  /// All of these stay where they are.
  LaneSimulator(const LaneTable& table, const LaneCosts& costs, bool keep_tasks, Simulation& out);

  /// Runs a pass until its last compute task has ended; columns are taken as the executor does.
  void run_pass(ColumnSource& columns);
  double now() const noexcept { return now_; }

 private:
  struct LaneState {
    std::deque<Task> queue;
    std::optional<Task> running;
    double left = 0;                     // seconds at the lane's full rate
    double memory_bytes_per_second = 0;  // that its task takes of the shared memory at that rate
    double started = 0;
    double idle_since = 0;
    bool computes = false;
    bool is_used = false;  // by this pass
  };

  bool lacks_tasks() const;
  bool refill(ColumnSource& columns);
  void drop(const std::vector<TaskId>& ids);
  bool is_ready(const Task& task) const;
  void start_what_can();
  void share_speeds();
  double next_end();
  void advance(double step);
  void end_task(size_t lane);

  const LaneCosts& costs_;
  bool keep_tasks_;
  Simulation& out_;
  std::vector<LaneState> lanes_;
  LaneSet running_;
  std::vector<double> speeds_;  // of those that run, until the next event: of their full rates
  std::vector<bool> done_;
  int64_t compute_left_ = 0;
  double now_ = 0;
};

}  // namespace sluice::policy
