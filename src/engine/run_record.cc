#include "src/engine/run_record.h"

#include <algorithm>

namespace sluice {

RunRecord::RunRecord(LaneTable machine, size_t pass_classes)
    : machine_(std::move(machine)), lane_totals_(machine_) {
  totals_.classes.resize(pass_classes);
}

void RunRecord::begin_run(const LaneExecutor& executor, const SublayerRunner& runner) {
  run_began_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(executor.seconds_since_start()));
  seen_ = {.inplace_seconds = runner.inplace_seconds()};
}

void RunRecord::add_pass(const PassPlan& pass, double seconds) {
  ++totals_.passes;
  PassClassStats& of_class = totals_.classes[pass.pass_class];
  ++of_class.passes;
  of_class.prefill_tokens += pass.prefill_tokens;
  of_class.decode_tokens += pass.decode_tokens;
  of_class.seconds += seconds;
  if (pass.prefill_tokens == 0) {
    of_class.decode_pass_tokens += pass.decode_tokens;
    of_class.decode_pass_seconds += seconds;
  }
  totals_.prefill_tokens += pass.prefill_tokens;
  (pass.prefill_tokens > 0 ? totals_.prefill_seconds : totals_.decode_seconds) += seconds;
}

PassTimes RunRecord::take_times(double seconds, const LaneExecutor& executor,
                                const SublayerRunner& runner) {
  const double device = executor.stats(Lane::kDeviceCompute).busy_seconds;
  const LaneStats up = executor.stats(Lane::kHostToDevice);
  const double inplace = runner.inplace_seconds();
  const PassTimes out{seconds, device - seen_.device_seconds - (inplace - seen_.inplace_seconds),
                      inplace - seen_.inplace_seconds, up.busy_seconds - seen_.up_seconds,
                      up.bytes - seen_.up_bytes};
  seen_ = {0, device, inplace, up.busy_seconds, up.bytes};
  return out;
}

void RunRecord::trace_inplace(const Task& task, SublayerRunner& runner) {
  const auto seconds = [&](Clock::time_point at) {
    return std::chrono::duration<double>(at - run_began_).count();
  };
  for (const SublayerRunner::Span& span : runner.take_inplace_spans()) {
    TaskEvent& event =
        events_.emplace_back(TaskEvent{task, seconds(span.begin), seconds(span.end)});
    event.task.lane = Lane::kHostCompute;
  }
}

LaneStats RunRecord::lane_stats(const LaneExecutor& executor, const SublayerRunner& runner,
                                Lane lane) const {
  LaneStats out = executor.stats(lane);
  const double inplace = runner.inplace_seconds() - counted_inplace_;
  if (lane == Lane::kDeviceCompute)
    out.busy_seconds = std::max(out.busy_seconds - inplace, 0.0);
  else if (lane == Lane::kHostCompute)
    out.busy_seconds += inplace;
  return out;
}

PerLane<PassReport::LaneReport> RunRecord::lane_report(const LaneExecutor& executor,
                                                       const SublayerRunner& runner) const {
  PerLane<PassReport::LaneReport> out(machine_);
  for (size_t i = 0; i < machine_.size(); ++i) {
    const LaneStats lane = lane_stats(executor, runner, Lane(i));
    out[i] = {lane.bytes, lane.busy_seconds};
  }
  return out;
}

void RunRecord::end_run(const LaneExecutor& executor, const SublayerRunner& runner,
                        double wall_seconds) {
  for (size_t i = 0; i < machine_.size(); ++i) {
    const LaneStats stats = lane_stats(executor, runner, Lane(i));
    LaneStats& total = lane_totals_[i];
    total.tasks += stats.tasks;
    total.bytes += stats.bytes;
    total.busy_seconds += stats.busy_seconds;
    total.wait_seconds += stats.wait_seconds;
  }
  lane_totals_[Lane::kDeviceToHost].bytes += runner.exchanged_down_bytes() - counted_down_;
  lane_totals_[Lane::kHostToDevice].bytes += runner.exchanged_up_bytes() - counted_up_;
  counted_down_ = runner.exchanged_down_bytes();
  counted_up_ = runner.exchanged_up_bytes();
  counted_inplace_ = runner.inplace_seconds();
  totals_.hand_overs = runner.hand_overs();
  events_.insert(events_.end(), executor.events().begin(), executor.events().end());
  totals_.wall_seconds += wall_seconds;
}

EngineStats RunRecord::stats() const {
  EngineStats out = totals_;
  out.machine = machine_;
  for (size_t i = 0; i < machine_.size(); ++i)
    if (lane_totals_[i].tasks > 0 || lane_totals_[i].busy_seconds > 0)
      out.lanes.emplace_back(Lane(i), lane_totals_[i]);
  return out;
}

}  // namespace sluice
