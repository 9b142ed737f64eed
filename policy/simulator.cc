#include "policy/simulator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "policy/expert_traffic.h"
#include "policy/routing_model.h"
#include "src/base/bytes.h"
#include "src/schedule/column_source.h"

namespace sluice::policy {

namespace {
// Tasks simulated for one candidate, about: fewer passes stand for all where each has many.
constexpr int64_t kSimulatedTasks = 100'000;
constexpr int64_t kTasksOfVisit =
    6;  // of a micro-batch in a sublayer, with what it loads and stores

// What the tasks of a model take on a machine of one disk, a host and at most one device.
class PlanCosts final : public LaneCosts {
 public:
  PlanCosts(const ModelShape& model, const Plan& plan, const Profile& profile, KvFormat kv_dtype,
            std::span<const PassWork> passes)
      : model_(model),
        plan_(plan),
        profile_(profile),
        sharing_(profile, repacking(plan, profile)),
        kv_dtype_(kv_dtype),
        passes_(passes) {}

  // Micro-batches with the same work, and sublayers that are alike, take as long: each is asked for
  // once a pass.
  void begin_pass(size_t pass) {
    const std::vector<BatchWork>& work = passes_[pass].work;
    alike_ = plan_.classes[passes_[pass].pass_class].alike.get();
    first_cost_.clear();
    size_t different = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      different += i == 0 || work[i] != work[i - 1];
      first_cost_.push_back((different - 1) * alike_->distinct.size() * kComputeSteps);
    }
    costs_.assign(different * alike_->distinct.size() * kComputeSteps, {});
  }

  double seconds(const Task& task, bool stood_idle) const override {
    if (task.kind == TaskKind::kCompute) {
      double sum = 0;
      for_each_cost(task, [&](const TaskSeconds& one, double times) {
        sum += times * task_duration(one, profile_.shares_cores);
      });
      return sum + end_of(task).hand_over;
    }
    if (task.bytes == 0) return 0;
    const auto bytes = static_cast<double>(task.bytes);
    if (task.lane == Lane::kHostToDevice)
      return profile_.link.latency_seconds.value + bytes / profile_.link.to_device.value;
    if (task.lane == Lane::kDeviceToHost)
      return profile_.link.latency_seconds.value + bytes / profile_.link.to_host.value;
    return disk_seconds(task, bytes, stood_idle);
  }

  bool may_start(Lane lane, const LaneSet& running) const override {
    return sharing_.may_start(lane, running);
  }
  double share(Lane lane, const LaneSet& running) const override {
    return sharing_.share(lane, running);
  }

  // Of the host's memory.
  double memory_bytes(const Task& task) const override {
    if (!profile_.shares_host_memory()) return 0;
    if (task.kind == TaskKind::kCompute) {
      double sum = 0;
      for_each_cost(task,
                    [&](const TaskSeconds& one, double times) { sum += times * one.host_bytes; });
      return sum;
    }
    const bool passes_by = task.kind == TaskKind::kLoadWeights &&
                           task.lane == plan_.paths.weights_from_disk.hops.front().up &&
                           plan_.paths.disk_reaches_device();
    return passes_by ? 0 : static_cast<double>(task.bytes);
  }
  double memory_rate() const override { return profile_.host.memory_read.value; }

  /// Of what a task holds the device's lane: its own, and the host's for rows in place.
  struct Held {
    double all = 0;
    double own = 0;
    double inplace = 0;
    double hand_overs = 0;
  };
  void add_held(const Task& task, Held& sum) const {
    if (task.kind != TaskKind::kCompute || task.lane != plan_.paths.compute) return;
    for_each_cost(task, [&](const TaskSeconds& seconds, double times) {
      sum.all += times * task_duration(seconds, profile_.shares_cores);
      sum.own += times * own_seconds(seconds, profile_.shares_cores);
      sum.inplace += times * seconds.host;
      sum.hand_overs += times * seconds.hand_overs;
    });
    const TaskSeconds end = end_of(task);
    sum.all += end.hand_over;
    sum.own += end.hand_over;
    sum.hand_overs += end.hand_overs;
  }

 private:
  // What others wait for is waited for.
  TaskSeconds end_of(const Task& task) const {
    TaskSeconds out;
    if (task.lane == plan_.paths.compute && task.compute().hands_over())
      out.add_hand_over(profile_);
    return out;
  }
  // Of experts computed together each takes what one does. In slots below a device the host
  // computes experts in place, beside the device.
  template <typename Add>
  void for_each_cost(const Task& task, const Add& add) const {
    const ComputeWork& work = task.compute();
    if (work.step != ComputeStep::kSomeExperts) return add(seconds_of(task, work.step), 1.0);
    const bool is_below = plan_.experts[static_cast<size_t>(task.sublayer)].is_below;
    double in_place = 0;
    for (const ExpertPlace& place : work.experts) in_place += is_below && place.slot >= 0;
    const double own = static_cast<double>(work.experts.size()) - in_place;
    if (in_place == 0) return add(seconds_of(task, work.step), own);
    TaskSeconds sum = seconds_of(task, kInPlace).times(in_place);
    sum += seconds_of(task, kExchange);
    if (own > 0) sum += seconds_of(task, work.step).times(own);
    add(sum, 1.0);
  }
  // Costs of experts in place, and of their exchange, are kept as of steps that no plan's sublayer
  // with experts has.
  static constexpr ComputeStep kInPlace = ComputeStep::kHostAttention;
  static constexpr ComputeStep kExchange = ComputeStep::kBeforeAttention;

  // Requests hide the latency behind each other, as far as the ring has room for them; pages are
  // few and small, and somebody waits.
  double disk_seconds(const Task& task, double bytes, bool stood_idle) const {
    const bool is_weights = task.kind == TaskKind::kLoadWeights;
    const bool is_kv = task.kind == TaskKind::kLoadKv || task.kind == TaskKind::kStoreKv;
    const double waits = is_kv || stood_idle ? 1
                         : is_weights        ? std::min(1.0, ring_waits(plan_, bytes))
                                             : 0;
    const double latency = waits * profile_.disk().latency_seconds.value;
    if (is_weights) {
      const PlanPart& part = plan_.parts[static_cast<size_t>(task.sublayer)]
                                        [static_cast<size_t>(task.part_load().part)];
      return latency + part_seconds(plan_, profile_, part);
    }
    const bool is_read = task.lane == Lane::kDiskRead;
    const double pages = is_kv ? bytes / page_bytes(task) : 0;
    return latency + bytes / (is_read ? profile_.disk_read() : profile_.disk_write()) +
           (is_read ? profile_.page_read_seconds(pages) : profile_.page_write_seconds(pages));
  }

  // What the disk's lane takes for a part: rows are repacked while others are read.
  static double part_seconds(const Plan& plan, const Profile& profile, const PlanPart& part) {
    const auto read = static_cast<double>(part.read_bytes());
    return std::max(read / profile.disk_read() + profile.part_read_seconds(read),
                    repack_seconds(plan, part));
  }

  // Of all parts: LaneSharing's.
  static double repacking(const Plan& plan, const Profile& profile) {
    double repack = 0, lane = 0;
    for (const auto& parts : plan.parts)
      for (const PlanPart& part : parts)
        if (part.from_disk) {
          repack += repack_seconds(plan, part);
          lane += part_seconds(plan, profile, part);
        }
    constexpr double kMost = 0.8;
    const double share = lane > 0 ? std::min(repack * plan.repack_core_share / lane, kMost) : 0;
    return share / (1 - share);
  }

  // As they lie on disk.
  double page_bytes(const Task& task) const {
    const StatePlace& place = model_.sublayers[static_cast<size_t>(task.sublayer)].state;
    const int64_t bytes = plan_.kv[static_cast<size_t>(place.group)].page_bytes;
    return static_cast<double>(round_up(bytes, kDiskBlock));
  }

  const TaskSeconds& seconds_of(const Task& task, ComputeStep step) const {
    const auto batch = static_cast<size_t>(task.micro_batch);
    const size_t kind = alike_->kind[static_cast<size_t>(task.sublayer)];
    std::optional<TaskSeconds>& cost =
        costs_[first_cost_[batch] + kind * kComputeSteps + static_cast<size_t>(step)];
    if (cost) return *cost;
    const BatchWork& work = passes_[static_cast<size_t>(task.pass)].work[batch];
    const size_t sublayer = alike_->distinct[kind].sublayer;
    cost =
        task.compute().step == ComputeStep::kSomeExperts && step == kExchange
            ? expert_exchange(model_, profile_, sublayer, 1, work.tokens, 0)
        : task.compute().step == ComputeStep::kSomeExperts
            ? expert_seconds(model_, plan_, profile_, sublayer, step == kInPlace, work, products_)
            : compute_seconds(model_, plan_, profile_, kv_dtype_, sublayer, step, work, products_);
    return *cost;
  }

  const ModelShape& model_;
  const Plan& plan_;
  const Profile& profile_;
  LaneSharing sharing_;
  KvFormat kv_dtype_;
  std::span<const PassWork> passes_;
  mutable ProductSeconds products_;
  const AlikeSublayers* alike_ = nullptr;  // in the pass
  std::vector<size_t> first_cost_;         // [micro-batch] of the pass: its place in costs_
  mutable std::vector<std::optional<TaskSeconds>> costs_;  // [different work][kind][step]
};
// Of what a layer will be asked for that is in no slot, what the layer before finds out, and of its
// guesses the wrong ones: counted with a made-up router that guesses as well as Qwen3-30B-A3B's
// does (0.886 of a token's experts), with the surer seven eighths of its choices.
constexpr double kGuessedRight = 0.72;
constexpr double kGuessedWrong = 0.12;

// Routes as the routing model expects them: so many experts that are in slots, and so many that are
// in none, over a pass's layers in all. Of what a layer asks for any is as likely to be away as any
// other (a binomial distribution, within 0.04 of what made-up routers do), so some layers lack none
// and wait for nothing, and some lack many. Those who come first are asked for, and guessed.
class ModelledRouter {
 public:
  ModelledRouter(const ModelShape& model, const Plan& plan, const ScheduleShape& shape,
                 const ScheduleGenerator& generator)
      : chosen_(model.experts_per_token), plan_(plan), shape_(shape), generator_(generator) {}
  void begin_pass(std::span<const BatchWork> work) { work_ = work; }

  Routed operator()(const AwaitedRoute& route) {
    const auto sublayer = static_cast<size_t>(route.sublayer);
    const ExpertCache& cache = *generator_.expert_cache(sublayer);
    const ScheduleExperts& layer = plan_.experts[sublayer];
    const BatchWork& work = work_[static_cast<size_t>(route.micro_batch)];
    resident_ += asked_experts(layer, chosen_, work.independent_tokens).resident;
    Routed out{{}, work.tokens};
    const Turns turns = turns_of(route.sublayer, route.micro_batch);
    guessed_for_.erase({route.sublayer, route.micro_batch});
    int64_t resident = std::min(take_whole(resident_), layer.resident);
    int64_t here = std::min(turns.here, layer.slots);
    int64_t gone = std::min(turns.gone, layer.others() - layer.slots);
    for (int32_t e = 0; e < static_cast<int32_t>(layer.experts); ++e)
      if (int64_t& left = layer.is_resident(e)                   ? resident
                          : cache.slot_of(layer.turn_of(e)) >= 0 ? here
                                                                 : gone;
          left > 0) {
        out.experts.push_back({e, 1});
        --left;
      }
    guess(guessed_after(shape_.sublayers, route.sublayer), route.micro_batch, out.guessed);
    return out;
  }

 private:
  // What is asked for of those that take turns.
  struct Turns {
    int64_t here = 0;  // in slots
    int64_t gone = 0;
  };

  Turns draw(int32_t sublayer, int32_t micro_batch) {
    const AskedExperts asked =
        asked_experts(plan_.experts[static_cast<size_t>(sublayer)], chosen_,
                      work_[static_cast<size_t>(micro_batch)].independent_tokens);
    turns_ += asked.held + asked.missing;
    const int64_t all = take_whole(turns_);
    const double share = asked.missing / std::max(asked.held + asked.missing, 1e-9);
    // Of many all layers lack about the same, but for what is no whole expert.
    constexpr int64_t kMany = 128;
    if (all > kMany) {
      missing_ += share * static_cast<double>(all);
      const int64_t gone = take_whole(missing_);
      return {all - gone, gone};
    }
    const int64_t gone = quantile(all, share);
    return {all - gone, gone};
  }

  // What was guessed from is what is asked for.
  Turns turns_of(int32_t sublayer, int32_t micro_batch) {
    const auto found = guessed_for_.find({sublayer, micro_batch});
    return found == guessed_for_.end() ? draw(sublayer, micro_batch) : found->second;
  }

  // Of the binomial distribution of n trials: quantiles in the order of the golden ratio's
  // multiples, which lie evenly however many are taken.
  int64_t quantile(int64_t n, double p) {
    constexpr double kGolden = 0.6180339887498949;
    position_ += kGolden;
    position_ -= std::floor(position_);
    if (p >= 1) return n;
    double chance = std::pow(1 - p, static_cast<double>(n));
    double sum = chance;
    int64_t k = 0;
    while (k < n && sum < position_) {
      chance *= p / (1 - p) * static_cast<double>(n - k) / static_cast<double>(k + 1);
      sum += chance;
      ++k;
    }
    return k;
  }

  void guess(int32_t sublayer, int32_t micro_batch, std::vector<int32_t>& out) {
    if (sublayer < 0) return;
    const ScheduleExperts& layer = plan_.experts[static_cast<size_t>(sublayer)];
    const ExpertCache& cache = *generator_.expert_cache(static_cast<size_t>(sublayer));
    const Turns turns = turns_of(sublayer, micro_batch);
    guessed_for_[{sublayer, micro_batch}] = turns;
    right_ += kGuessedRight * static_cast<double>(turns.gone);
    wrong_ += kGuessedWrong * static_cast<double>(turns.gone);
    int64_t left = std::min(take_whole(right_), turns.gone);
    for (auto e = static_cast<int32_t>(layer.resident);
         e < static_cast<int32_t>(layer.experts) && left > 0; ++e) {
      if (cache.slot_of(layer.turn_of(e)) >= 0) continue;
      out.push_back(e);
      --left;
    }
    // The surest come first. A wrong one is the last to be asked for.
    if (take_whole(wrong_) > 0)  // the last to be asked for
      for (auto e = static_cast<int32_t>(layer.experts) - 1; e >= layer.resident; --e)
        if (cache.slot_of(layer.turn_of(e)) < 0) {
          out.push_back(e);
          break;
        }
  }

  static int64_t take_whole(double& sum) {
    const double whole = std::floor(sum);
    sum -= whole;
    return static_cast<int64_t>(whole);
  }
  int64_t chosen_;
  const Plan& plan_;
  const ScheduleShape& shape_;
  const ScheduleGenerator& generator_;
  std::span<const BatchWork> work_;
  std::map<std::pair<int32_t, int32_t>, Turns> guessed_for_;  // [sublayer, micro-batch]
  double resident_ = 0, turns_ = 0, missing_ = 0;             // that no layer has asked for yet
  double right_ = 0, wrong_ = 0;                              // that no layer has guessed yet
  double position_ = 0;                                       // of the last quantile, in [0, 1)
};

// Of a pass that runs, who computes for the device's lane.
class SimulatedColumns final : public PassColumns {
 public:
  SimulatedColumns(ScheduleGenerator& generator, uint64_t& hash, const PlanCosts& costs,
                   ModelledRouter& router)
      : PassColumns(generator, hash, std::ref(router)), costs_(costs) {}
  PlanCosts::Held held;

 private:
  void prepare(Task& task) override { costs_.add_held(task, held); }
  const PlanCosts& costs_;
};

// Rows in place are the host's: what their products held the device's lane for
// goes there, so many seconds.
double move_inplace(const PlanCosts::Held& held, PerLane<double>& busy) {
  if (held.inplace <= 0) return 0;
  const double lane = busy[Lane::kDeviceCompute];
  const double inplace = lane * held.inplace / held.all;
  busy[Lane::kDeviceCompute] = lane * held.own / held.all;
  busy[Lane::kHostCompute] += inplace;
  return inplace;
}

// Bytes that a pass streams for all of its micro-batches are at most this share of the bytes that
// its simulated micro-batches ask for.
constexpr double kSharedByBatches = 0.01;
// Micro-batches of a pass that asks for experts that are simulated: each is hundreds of tasks in
// every layer.
constexpr size_t kAskingBatches = 6;

// Beside what the first micro-batches ask for.
bool shares_little(const ModelShape& model, const Plan& plan, const PassWork& pass,
                   size_t batches) {
  double shared = 0, asked = 0;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    for (const PlanPart& part : plan.parts[i])
      if (part.expert < 0 && part.is_loaded_in(pass.pass_class))
        shared += static_cast<double>(part.bytes);
    if (plan.experts[i].experts > 0)
      asked += loaded_experts(model, plan.experts[i], true, std::span(pass.work).first(batches)) *
               static_cast<double>(expert_bytes(model, i));
  }
  return shared <= kSharedByBatches * asked;
}

double pairs_of(const AttentionWork& work) {
  return work.prefill_pairs + work.host_prefill_pairs + work.device_history_tokens +
         work.host_history_tokens;
}

// Of many micro-batches that each ask for their own experts some stand for all, spread evenly, with
// as many tokens and as much attention together.
void thin_out(const ModelShape& model, const Plan& plan, PassWork& pass) {
  const size_t all = pass.loads.size();
  if (all <= kAskingBatches || !plan.demands_experts(pass.routed()) ||
      !shares_little(model, plan, pass, kAskingBatches))
    return;
  PassWork some = pass;
  some.loads.clear();
  some.work.clear();
  for (size_t i = 0; i < kAskingBatches; ++i) {
    const size_t index = (2 * i + 1) * all / (2 * kAskingBatches);
    some.loads.push_back(pass.loads[index]);
    some.work.push_back(pass.work[index]);
  }
  const double each = static_cast<double>(pass.tokens()) / static_cast<double>(some.tokens());
  some.passes *= each;
  for (size_t group = 0; group < plan.kv.size(); ++group) {
    const auto pairs = [&](const PassWork& of) {
      double sum = 0;
      for (const BatchWork& work : of.work) sum += pairs_of(work.attention[group]);
      return sum;
    };
    const double kept = each * pairs(some);
    if (kept > 0)
      for (BatchWork& work : some.work) work.attention[group].scale(pairs(pass) / kept);
  }
  pass = std::move(some);
}
}  // namespace

Simulation simulate(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const ScheduleShape& shape, std::span<const PassWork> passes,
                    bool keep_tasks) {
  Simulation out;
  ScheduleGenerator generator(shape);
  PlanCosts costs(model, plan, profile, kv_dtype, passes);
  ModelledRouter router(model, plan, shape, generator);
  LaneSimulator lanes(named_lanes(), costs, keep_tasks, out);
  std::vector<PlanCosts::Held> held;  // [pass]
  for (size_t i = 0; i < passes.size(); ++i) {
    costs.begin_pass(i);
    const PassWork& next = passes[i + 1 < passes.size() ? i + 1 : i];
    generator.begin_pass(
        passes[i].loads, passes[i].more_follow,
        {passes[i].pass_class, next.pass_class, plan.demands_experts(passes[i].routed()),
         plan.demands_experts(next.routed())});
    router.begin_pass(passes[i].work);
    SimulatedColumns columns(generator, out.stream_hash, costs, router);
    lanes.run_pass(columns);
    held.push_back(columns.held);
    out.hand_overs += columns.held.hand_overs;
  }
  out.seconds = lanes.now();
  out.pass_busy.resize(passes.size());
  out.pass_held_seconds.resize(passes.size());
  out.pass_inplace_seconds.resize(passes.size());
  out.pass_host_memory_bytes.resize(passes.size());
  for (size_t i = 0; i < passes.size(); ++i) {
    out.pass_held_seconds[i] = out.pass_busy[i][Lane::kDeviceCompute];
    out.pass_inplace_seconds[i] = move_inplace(held[i], out.pass_busy[i]);
  }
  return out;
}

Prediction simulate_block(const ModelShape& model, const Plan& plan, const Profile& profile,
                          KvFormat kv_dtype, const JobShape& job) {
  int64_t loads = 0;
  for (const auto& parts : plan.parts)
    for (const PlanPart& part : parts) loads += part.from_disk ? plan.paths.state.hops.size() : 1;
  const auto sampled = [&](int64_t micro_batches) {
    const auto visits = static_cast<int64_t>(model.sublayers.size()) * micro_batches;
    const int64_t tasks = visits * kTasksOfVisit + loads;
    // Of large passes, how the first of them begins is little.
    return std::clamp<int64_t>(kSimulatedTasks / 2 / tasks, tasks > kSimulatedTasks ? 1 : 2, 5);
  };
  BlockPasses block = block_passes(
      model, plan, job, sampled((plan.pass_tokens - 1) / plan.policy.micro_batch_tokens + 1),
      sampled(plan.policy.micro_batches));
  for (PassWork& pass : block.passes) thin_out(model, plan, pass);
  const Simulation simulation =
      simulate(model, plan, profile, kv_dtype, schedule_shape(model, plan), block.passes, false);
  Prediction out;
  out.block_sequences = block.sequences;
  out.new_tokens = static_cast<double>(block.sequences) * job.new_tokens;
  double before = 0;
  for (size_t i = 0; i < block.passes.size(); ++i) {
    const bool is_prefill = i < block.prefill_passes;
    const double scale = block.passes[i].passes;
    (is_prefill ? out.prefill_seconds : out.decode_seconds) +=
        scale * (simulation.pass_ends[i] - before);
    before = simulation.pass_ends[i];
    for (size_t lane = 0; lane < simulation.pass_busy[i].size(); ++lane)
      (is_prefill ? out.prefill_lanes : out.decode_lanes)[lane] +=
          scale * simulation.pass_busy[i][lane];
    (is_prefill ? out.prefill_held_seconds : out.decode_held_seconds) +=
        scale * simulation.pass_held_seconds[i];
    (is_prefill ? out.prefill_inplace_seconds : out.decode_inplace_seconds) +=
        scale * simulation.pass_inplace_seconds[i];
    (is_prefill ? out.prefill_host_memory_seconds : out.decode_host_memory_seconds) +=
        scale * simulation.pass_host_memory_bytes[i] / profile.host.memory_read.value;
  }
  // The first of few simulated passes hides loads of the next one; the passes that it stands for
  // need not: no phase is shorter than its busiest lane.
  for (size_t lane = 0; lane < out.prefill_lanes.size(); ++lane) {
    out.prefill_seconds = std::max(out.prefill_seconds, out.prefill_lanes[lane]);
    out.decode_seconds = std::max(out.decode_seconds, out.decode_lanes[lane]);
  }
  return out;
}

}  // namespace sluice::policy
