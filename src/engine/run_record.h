#pragma once
// What an engine's runs did: counts and seconds of passes, of the lanes and, where it is kept, of
// every task. One thread at a time.
#include <chrono>
#include <vector>

#include "src/device/lane_executor.h"
#include "src/engine/engine.h"
#include "src/engine/passes/class_chooser.h"
#include "src/engine/passes/pass_plan.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

class RunRecord {
 public:
  using Clock = std::chrono::steady_clock;
  RunRecord(LaneTable machine, size_t pass_classes);

  /// A run begins: `executor` counts from nought, `runner` goes on counting.
  void begin_run(const LaneExecutor& executor, const SublayerRunner& runner);
  /// A pass has run.
  void add_pass(const PassPlan& pass, double seconds);
  /// What the lanes did since the last pass of this run: for the next one's class.
  PassTimes take_times(double seconds, const LaneExecutor& executor, const SublayerRunner& runner);
  /// Rows in place are the host's, within a task of the device's lane.
  void trace_inplace(const Task& task, SublayerRunner& runner);
  /// Of this run, by lane. Rows in place are multiplied by the host while they hold the device's.
  LaneStats lane_stats(const LaneExecutor& executor, const SublayerRunner& runner, Lane lane) const;
  PerLane<PassReport::LaneReport> lane_report(const LaneExecutor& executor,
                                              const SublayerRunner& runner) const;
  /// A run has ended: its lanes are added to those before.
  void end_run(const LaneExecutor& executor, const SublayerRunner& runner, double wall_seconds);

  const LaneTable& machine() const noexcept { return machine_; }
  const std::vector<TaskEvent>& events() const noexcept { return events_; }
  EngineStats& totals() noexcept { return totals_; }
  /// With the lanes that did something.
  EngineStats stats() const;

 private:
  LaneTable machine_;
  EngineStats totals_;
  PerLane<LaneStats> lane_totals_;
  int64_t counted_down_ = 0;  // of the runner's exchanged bytes, already in lane_totals_
  int64_t counted_up_ = 0;
  double counted_inplace_ = 0;
  PassTimes seen_;  // of this run, when the last pass had ended
  Clock::time_point run_began_;
  std::vector<TaskEvent> events_;
};

}  // namespace sluice
