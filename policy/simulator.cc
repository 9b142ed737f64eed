#include "policy/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/schedule/column_source.h"

namespace sluice::policy {

namespace {
constexpr double kNever = std::numeric_limits<double>::infinity();
// What is left of a task below this is rounding.
constexpr double kInstant = 1e-12;
// Tasks simulated for one candidate, about: fewer passes stand for all where each has many.
constexpr int64_t kSimulatedTasks = 100'000;
constexpr int64_t kTasksOfVisit =
    6;  // of a micro-batch in a sublayer, with what it loads and stores

bool is_compute(Lane lane) { return lane == Lane::kDeviceCompute || lane == Lane::kHostCompute; }

// The lanes of one machine, by discrete events.
class Lanes {
 public:
  Lanes(const ModelShape& model, const Plan& plan, const Profile& profile, KvFormat kv_dtype,
        std::span<const PassWork> passes, bool keep_tasks, Simulation& out)
      : model_(model),
        plan_(plan),
        profile_(profile),
        kv_dtype_(kv_dtype),
        passes_(passes),
        keep_tasks_(keep_tasks),
        alike_(alike_sublayers(model, plan)),
        out_(out) {}

  /// Runs a pass until its last compute task has ended.
  void run_pass(ColumnSource& columns) {
    sort_work();
    for (size_t i = 0; i < lanes_.size(); ++i) uses_[i] = columns.uses(static_cast<Lane>(i));
    int64_t compute_left = 0;
    refill(columns, compute_left);
    while (compute_left > 0) {
      do start_what_can();
      while (refill(columns, compute_left));
      const double step = next_end();
      SLUICE_ASSERT(step < kNever, "a schedule can't block itself");
      advance(step, compute_left);
      refill(columns, compute_left);
    }
    out_.pass_ends.push_back(now_);
  }
  double now() const noexcept { return now_; }

 private:
  struct LaneState {
    std::deque<Task> queue;
    std::optional<Task> running;
    double left = 0;                   // seconds at the lane's full rate
    double host_bytes_per_second = 0;  // that its task takes of the host's memory at that rate
    double started = 0;
    double idle_since = 0;
  };

  bool lacks_tasks() const {
    for (size_t i = 0; i < lanes_.size(); ++i)
      if (uses_[i] && lanes_[i].queue.empty()) return true;
    return false;
  }

  // Takes columns as the executor does; whether it took any.
  bool refill(ColumnSource& columns, int64_t& compute_left) {
    bool has_taken = false;
    while (lacks_tasks() && columns.has_column()) {
      const TaskId awaited = columns.awaited();
      if (awaited != kNoTask && !done_[static_cast<size_t>(awaited)]) break;
      has_taken = true;
      std::vector<Task> tasks = columns.next_column();
      done_.resize(done_.size() + tasks.size(), false);
      for (Task& task : tasks) {
        if (is_compute(task.lane)) ++compute_left;
        lanes_[static_cast<size_t>(task.lane)].queue.push_back(std::move(task));
      }
    }
    return has_taken;
  }

  bool is_ready(const Task& task) const {
    return std::all_of(task.waits.begin(), task.waits.end(),
                       [&](TaskId id) { return done_[static_cast<size_t>(id)]; });
  }

  void start_what_can() {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      LaneState& lane = lanes_[i];
      if (lane.running || lane.queue.empty() || !is_ready(lane.queue.front())) continue;
      const auto kind = static_cast<Lane>(i);
      const Lane other = kind == Lane::kDeviceCompute ? Lane::kHostCompute : Lane::kDeviceCompute;
      const bool shares = profile_.shares_cores || !profile_.device;
      if (is_compute(kind) && shares && lanes_[static_cast<size_t>(other)].running) continue;
      lane.running = std::move(lane.queue.front());
      lane.queue.pop_front();
      lane.left = full_rate_seconds(*lane.running, lane);
      lane.host_bytes_per_second = lane.left > 0 ? host_memory_bytes(*lane.running) / lane.left : 0;
      lane.started = now_;
    }
  }

  double full_rate_seconds(const Task& task, const LaneState& lane) const {
    const auto bytes = static_cast<double>(task.bytes);
    switch (task.lane) {
      case Lane::kDiskRead:
      case Lane::kDiskWrite: {
        if (task.bytes == 0) return 0;
        // Requests hide it behind each other, as far as the ring has room for them; pages are few
        // and small, and somebody waits.
        const bool is_kv = task.kind == TaskKind::kLoadKv || task.kind == TaskKind::kStoreKv;
        const double waits = is_kv || lane.idle_since < now_ ? 1
                             : task.kind == TaskKind::kLoadWeights
                                 ? std::min(1.0, ring_waits(plan_, bytes))
                                 : 0;
        const double latency = waits * profile_.disk().latency_seconds.value;
        const bool is_read = task.lane == Lane::kDiskRead;
        const double pages =
            is_kv ? bytes / static_cast<double>(round_up(plan_.page_bytes, kDiskBlock)) : 0;
        if (task.kind == TaskKind::kLoadWeights)
          return latency + bytes / profile_.disk_read() + profile_.part_read_seconds(bytes);
        return latency + bytes / (is_read ? profile_.disk_read() : profile_.disk_write()) +
               (is_read ? profile_.page_read_seconds(pages) : profile_.page_write_seconds(pages));
      }
      case Lane::kHostToDevice:
        if (task.bytes == 0) return 0;
        return profile_.link.latency_seconds.value + bytes / profile_.link.to_device.value;
      case Lane::kDeviceToHost:
        if (task.bytes == 0) return 0;
        return profile_.link.latency_seconds.value + bytes / profile_.link.to_host.value;
      case Lane::kDeviceCompute:
      case Lane::kHostCompute: break;
    }
    return task_duration(seconds_of(task), profile_.shares_cores);
  }

  // Micro-batches with the same work, and sublayers that are alike, take as long: each is asked for
  // once a pass.
  void sort_work() {
    const std::vector<BatchWork>& work = passes_[out_.pass_ends.size()].work;
    same_work_.clear();
    for (size_t i = 0; i < work.size(); ++i) {
      size_t first = i;
      if (i > 0 && work[i] == work[i - 1]) first = same_work_[i - 1];
      same_work_.push_back(first);
    }
    costs_.clear();
  }

  const TaskSeconds& seconds_of(const Task& task) const {
    const auto batch = static_cast<size_t>(task.micro_batch);
    const size_t sublayer = alike_[static_cast<size_t>(task.sublayer)];
    const auto [found, is_new] =
        costs_.try_emplace({sublayer, static_cast<size_t>(task.compute().step), same_work_[batch]});
    if (is_new)
      found->second =
          compute_seconds(model_, plan_, profile_, kv_dtype_, sublayer, task.compute().step,
                          passes_[static_cast<size_t>(task.pass)].work[batch]);
    return found->second;
  }

  // Bytes of the host's memory that a task reads or writes.
  double host_memory_bytes(const Task& task) const {
    if (!profile_.shares_host_memory()) return 0;
    if (is_compute(task.lane)) return seconds_of(task).host_bytes;
    const bool passes_by = task.kind == TaskKind::kLoadWeights && task.lane == Lane::kDiskRead &&
                           plan_.disk_reaches_device;
    return passes_by ? 0 : static_cast<double>(task.bytes);
  }

  // Share of its full rate that a lane has now: of what two lanes share, and of the host's memory,
  // which all that want more of it than there is get in proportion.
  double speed(Lane lane) const {
    const double own = speed_beside_others(lane);
    if (lanes_[static_cast<size_t>(lane)].host_bytes_per_second <= 0) return own;
    double wanted = 0;
    for (size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].running && lanes_[i].host_bytes_per_second > 0)
        wanted += lanes_[i].host_bytes_per_second * speed_beside_others(static_cast<Lane>(i));
    return own * std::min(1.0, profile_.host.memory_read.value / wanted);
  }

  double speed_beside_others(Lane lane) const {
    const auto runs = [&](Lane other) {
      return lanes_[static_cast<size_t>(other)].running.has_value();
    };
    const Disk& disk = profile_.disk();
    switch (lane) {
      case Lane::kDiskRead:
        return (runs(Lane::kDiskWrite) ? disk.mixed_read.value / disk.read.value : 1) *
               (host_computes() ? disk.busy_read.value / disk.read.value : 1);
      case Lane::kDiskWrite:
        return runs(Lane::kDiskRead) ? disk.mixed_write.value / disk.write.value : 1;
      case Lane::kHostToDevice:
        return runs(Lane::kDeviceToHost) ? profile_.link.both_share.value : 1;
      case Lane::kDeviceToHost:
        return runs(Lane::kHostToDevice) ? profile_.link.both_share.value : 1;
      case Lane::kDeviceCompute:
      case Lane::kHostCompute: return compute_speed(lane);
    }
    return 1;
  }

  bool host_computes() const {
    const bool on_cores = profile_.shares_cores || !profile_.device;
    return lanes_[static_cast<size_t>(Lane::kHostCompute)].running ||
           (on_cores && lanes_[static_cast<size_t>(Lane::kDeviceCompute)].running);
  }

  // Reading the disk takes some of the host's cores, and so do copies on an emulated device.
  double compute_speed(Lane lane) const {
    constexpr double kLeast = 0.2;
    const bool on_cores = profile_.shares_cores || !profile_.device || lane == Lane::kHostCompute;
    if (!on_cores) return 1;
    double taken = 0;
    if (lanes_[static_cast<size_t>(Lane::kDiskRead)].running)
      taken += profile_.disk().busy_read.value * profile_.read_delay.value;
    return std::max(1 / (1 + taken + copies_take()), kLeast);
  }

  double copies_take() const {
    if (!profile_.shares_cores) return 0;
    double taken = 0;
    for (const Lane lane : {Lane::kHostToDevice, Lane::kDeviceToHost}) {
      if (!lanes_[static_cast<size_t>(lane)].running) continue;
      const double rate =
          lane == Lane::kHostToDevice ? profile_.link.to_device.value : profile_.link.to_host.value;
      taken += rate * speed_beside_others(lane) * profile_.copy_delay.value;
    }
    return taken;
  }

  double next_end() const {
    double step = kNever;
    for (size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].running) step = std::min(step, lanes_[i].left / speed(static_cast<Lane>(i)));
    return step;
  }

  void advance(double step, int64_t& compute_left) {
    std::array<double, kLaneCount> speeds{};
    for (size_t i = 0; i < lanes_.size(); ++i) speeds[i] = speed(static_cast<Lane>(i));
    now_ += step;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      LaneState& lane = lanes_[i];
      if (!lane.running) continue;
      lane.left -= step * speeds[i];
      const auto pass = static_cast<size_t>(lane.running->pass);
      if (pass >= out_.pass_busy.size()) {
        out_.pass_busy.resize(pass + 1);
        out_.pass_host_memory_bytes.resize(pass + 1);
      }
      out_.pass_busy[pass][i] += step;
      out_.pass_host_memory_bytes[pass] += step * speeds[i] * lane.host_bytes_per_second;
      if (lane.left > kInstant) continue;
      done_[static_cast<size_t>(lane.running->id)] = true;
      if (is_compute(static_cast<Lane>(i))) --compute_left;
      if (keep_tasks_) out_.tasks.push_back({std::move(*lane.running), lane.started, now_});
      lane.running.reset();
      lane.idle_since = now_;
    }
  }

  const ModelShape& model_;
  const Plan& plan_;
  const Profile& profile_;
  KvFormat kv_dtype_;
  std::span<const PassWork> passes_;
  bool keep_tasks_;
  std::vector<size_t> alike_;      // [sublayer]
  std::vector<size_t> same_work_;  // [micro-batch] of the pass: an earlier one with the same work
  mutable std::map<std::array<size_t, 3>, TaskSeconds> costs_;  // sublayer, step, micro-batch
  Simulation& out_;
  std::array<LaneState, kLaneCount> lanes_;
  std::array<bool, kLaneCount> uses_{};  // of the pass
  std::vector<bool> done_;
  double now_ = 0;
};
}  // namespace

double Simulation::busy_seconds(Lane lane) const noexcept {
  double sum = 0;
  for (const auto& pass : pass_busy) sum += pass[static_cast<size_t>(lane)];
  return sum;
}

Simulation simulate(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const ScheduleShape& shape, std::span<const PassWork> passes,
                    bool keep_tasks) {
  Simulation out;
  ScheduleGenerator generator(shape);
  Lanes lanes(model, plan, profile, kv_dtype, passes, keep_tasks, out);
  for (const PassWork& pass : passes) {
    generator.begin_pass(pass.loads, pass.more_follow);
    PassColumns columns(generator, out.stream_hash);
    lanes.run_pass(columns);
  }
  out.seconds = lanes.now();
  out.pass_busy.resize(passes.size());
  out.pass_host_memory_bytes.resize(passes.size());
  return out;
}

ScheduleShape schedule_shape(const ModelShape& model, const Plan& plan) {
  ScheduleShape shape;
  shape.has_device = plan.has_device;
  shape.disk_reaches_device = plan.disk_reaches_device;
  shape.weight_ring_bytes = plan.ring_bytes;
  shape.host_ring_bytes = plan.host_ring_bytes;
  shape.kv_slots = kKvSlots;
  shape.activation_slots = kActivationSlots;
  shape.attention_slots = kAttentionSlots;
  for (size_t i = 0; i < model.sublayers.size(); ++i) {
    ScheduleSublayer& sublayer = shape.sublayers.emplace_back();
    sublayer.has_attention = model.sublayers[i].kind == SublayerKind::kAttention;
    for (const PlanPart& part : plan.parts[i])
      sublayer.parts.push_back({part.bytes, part.from_disk});
  }
  return shape;
}

Prediction simulate_block(const ModelShape& model, const Plan& plan, const Profile& profile,
                          KvFormat kv_dtype, const JobShape& job) {
  int64_t loads = 0;
  for (const auto& parts : plan.parts)
    for (const PlanPart& part : parts) loads += part.from_disk && plan.has_device ? 2 : 1;
  const auto sampled = [&](int64_t micro_batches) {
    const auto visits = static_cast<int64_t>(model.sublayers.size()) * micro_batches;
    return std::clamp<int64_t>(kSimulatedTasks / 2 / (visits * kTasksOfVisit + loads), 2, 5);
  };
  const BlockPasses block =
      block_passes(model, plan, kv_dtype, job,
                   sampled((plan.pass_tokens - 1) / plan.policy.micro_batch_tokens + 1),
                   sampled(plan.policy.micro_batches));
  const Simulation simulation =
      simulate(model, plan, profile, kv_dtype, schedule_shape(model, plan), block.passes, false);
  Prediction out;
  out.block_sequences = block.sequences;
  out.new_tokens = static_cast<double>(block.sequences) * job.new_tokens;
  double before = 0;
  for (size_t i = 0; i < block.passes.size(); ++i) {
    const bool is_prefill = i < block.prefill_passes;
    const double scale = is_prefill ? block.prefill_scale : block.decode_scale;
    (is_prefill ? out.prefill_seconds : out.decode_seconds) +=
        scale * (simulation.pass_ends[i] - before);
    before = simulation.pass_ends[i];
    for (size_t lane = 0; lane < kLaneCount; ++lane)
      (is_prefill ? out.prefill_lanes : out.decode_lanes)[lane] +=
          scale * simulation.pass_busy[i][lane];
    (is_prefill ? out.prefill_host_memory_seconds : out.decode_host_memory_seconds) +=
        scale * simulation.pass_host_memory_bytes[i] / profile.host.memory_read.value;
  }
  return out;
}

}  // namespace sluice::policy
