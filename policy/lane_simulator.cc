#include "policy/lane_simulator.h"

#include <algorithm>
#include <limits>

#include "src/base/error.h"

namespace sluice::policy {

namespace {
constexpr double kNever = std::numeric_limits<double>::infinity();
// What is left of a task below this is rounding.
constexpr double kInstant = 1e-12;
}  // namespace

double Simulation::busy_seconds(Lane lane) const noexcept {
  double sum = 0;
  for (const auto& pass : pass_busy) sum += pass[lane];
  return sum;
}

LaneSimulator::LaneSimulator(const LaneTable& table, const LaneCosts& costs, bool keep_tasks,
                             Simulation& out)
    : costs_(costs),
      keep_tasks_(keep_tasks),
      out_(out),
      lanes_(table.size()),
      speeds_(table.size()) {
  for (size_t i = 0; i < table.size(); ++i) lanes_[i].computes = table[i].computes();
}

void LaneSimulator::run_pass(ColumnSource& columns) {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].is_used = columns.uses(Lane(i));
  refill(columns);
  while (compute_left_ > 0) {
    do start_what_can();
    while (refill(columns));
    const double step = next_end();
    SLUICE_ASSERT(step < kNever, "a schedule can't block itself");
    advance(step);
    refill(columns);
  }
  out_.pass_ends.push_back(now_);
}

bool LaneSimulator::lacks_tasks() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const LaneState& lane) { return lane.is_used && lane.queue.empty(); });
}

// Whether it took any.
bool LaneSimulator::refill(ColumnSource& columns) {
  bool has_taken = false;
  while (lacks_tasks() && columns.has_column()) {
    const TaskId awaited = columns.awaited();
    if (awaited != kNoTask && !done_[static_cast<size_t>(awaited)]) break;
    has_taken = true;
    std::vector<Task> tasks = columns.next_column();
    done_.resize(done_.size() + tasks.size(), false);
    for (Task& task : tasks) {
      LaneState& lane = lanes_[static_cast<size_t>(task.lane)];
      compute_left_ += lane.computes;
      lane.queue.push_back(std::move(task));
    }
    drop(columns.take_dropped());
  }
  return has_taken;
}

// Those that have not begun.
void LaneSimulator::drop(const std::vector<TaskId>& ids) {
  for (const TaskId id : ids)
    for (LaneState& lane : lanes_) {
      const auto found = std::find_if(lane.queue.begin(), lane.queue.end(),
                                      [&](const Task& task) { return task.id == id; });
      if (found == lane.queue.end()) continue;
      compute_left_ -= lane.computes;
      lane.queue.erase(found);
      done_[static_cast<size_t>(id)] = true;
      break;
    }
}

bool LaneSimulator::is_ready(const Task& task) const {
  return std::all_of(task.waits.begin(), task.waits.end(),
                     [&](TaskId id) { return done_[static_cast<size_t>(id)]; });
}

void LaneSimulator::start_what_can() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = lanes_[i];
    if (lane.running || lane.queue.empty() || !is_ready(lane.queue.front())) continue;
    if (!costs_.may_start(Lane(i), running_)) continue;
    lane.running = std::move(lane.queue.front());
    lane.queue.pop_front();
    running_.set(Lane(i), true);
    lane.left = costs_.seconds(*lane.running, lane.idle_since < now_);
    lane.memory_bytes_per_second =
        lane.left > 0 ? costs_.memory_bytes(*lane.running) / lane.left : 0;
    lane.started = now_;
  }
}

// Of what lanes share, and of the memory.
void LaneSimulator::share_speeds() {
  double wanted = 0;  // of the memory
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].running) continue;
    speeds_[i] = costs_.share(Lane(i), running_);
    wanted += lanes_[i].memory_bytes_per_second * speeds_[i];
  }
  if (wanted <= costs_.memory_rate()) return;
  const double given = costs_.memory_rate() / wanted;
  for (size_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].running && lanes_[i].memory_bytes_per_second > 0) speeds_[i] *= given;
}

double LaneSimulator::next_end() {
  share_speeds();
  double step = kNever;
  for (size_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].running) step = std::min(step, lanes_[i].left / speeds_[i]);
  return step;
}

void LaneSimulator::advance(double step) {
  now_ += step;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = lanes_[i];
    if (!lane.running) continue;
    lane.left -= step * speeds_[i];
    const auto pass = static_cast<size_t>(lane.running->pass);
    if (pass >= out_.pass_busy.size()) {
      out_.pass_busy.resize(pass + 1, PerLane<double>(lanes_.size()));
      out_.pass_host_memory_bytes.resize(pass + 1);
    }
    out_.pass_busy[pass][i] += step;
    out_.pass_host_memory_bytes[pass] += step * speeds_[i] * lane.memory_bytes_per_second;
    if (lane.left <= kInstant) end_task(i);
  }
}

void LaneSimulator::end_task(size_t index) {
  LaneState& lane = lanes_[index];
  done_[static_cast<size_t>(lane.running->id)] = true;
  compute_left_ -= lane.computes;
  running_.set(Lane(index), false);
  if (keep_tasks_) out_.tasks.push_back({std::move(*lane.running), lane.started, now_});
  lane.running.reset();
  lane.idle_since = now_;
}

}  // namespace sluice::policy
