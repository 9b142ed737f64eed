#include "policy/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "policy/expert_traffic.h"
#include "policy/lane_sharing.h"
#include "policy/routing_model.h"
#include "src/base/bytes.h"

namespace sluice::policy {

namespace {
// Decode passes looked at: their costs are linear in the context, so two give the sum.
constexpr int64_t kDecodeSamples = 2;
// And one full prefill pass stands for all full ones.
constexpr int64_t kPrefillSamples = 1;

// Seconds of compute tasks of one pass. Layers of one shape and split cost the same, and so do
// micro-batches with the same work: each is asked for once.
class ComputeCosts {
 public:
  ComputeCosts(const ModelShape& model, const Plan& plan, const Profile& profile, KvFormat kv_dtype,
               ProductSeconds& products)
      : model_(model), plan_(plan), profile_(profile), kv_dtype_(kv_dtype), products_(products) {}

  struct Sums {
    double held = 0;        // seconds that tasks hold the device's lane
    double device = 0;      // of these, its own
    double inplace = 0;     // seconds of the host's, for rows in place
    double host = 0;        // likewise, for attention
    double host_bytes = 0;  // of host memory, read by its cores
    double experts = 0;     // of `held`, experts that are computed one by one
  };
  /// Of a pass that asks for experts or does not.
  void begin_pass(bool demands) {
    has_last_ = has_last_ && demands == demands_;
    demands_ = demands;
  }
  // `times` such micro-batches.
  void add(const BatchWork& work, const MicroBatchLoad& load, double times, Sums& sums) {
    if (!has_last_ || work != last_ || load.state != last_state_ || load.shared != last_shared_) {
      last_ = work;
      last_state_ = load.state;
      last_shared_ = load.shared;
      has_last_ = true;
      last_sums_ = {};
      for (const Distinct& one : plan_.classes[work.pass_class].alike->distinct)
        add_sublayer(one, work, load);
      add_ends(load);
    }
    sums.held += times * last_sums_.held;
    sums.device += times * last_sums_.device;
    sums.inplace += times * last_sums_.inplace;
    sums.host += times * last_sums_.host;
    sums.host_bytes += times * last_sums_.host_bytes;
    sums.experts += times * last_sums_.experts;
  }

 private:
  using Distinct = AlikeSublayers::Distinct;
  void add_experts(const Distinct& one, const BatchWork& work) {
    const ScheduleExperts& layer = plan_.experts[one.sublayer];
    const AskedExperts asked =
        asked_experts(layer, model_.experts_per_token, work.independent_tokens);
    const auto of = [&](double count, bool in_place) {
      if (count <= 0) return TaskSeconds{};
      TaskSeconds task =
          expert_seconds(model_, plan_, profile_, one.sublayer, in_place, work, products_)
              .times(count);
      if (in_place) task += expert_exchange(model_, profile_, one.sublayer, count, work.tokens, 0);
      return task;
    };
    const auto add = [&](const TaskSeconds& task, double count) {
      const double held = one.count * count * task_duration(task, profile_.shares_cores);
      last_sums_.held += held;
      last_sums_.device += one.count * count * own_seconds(task, profile_.shares_cores);
      last_sums_.inplace += one.count * count * task.host;
      last_sums_.experts += held;
      last_sums_.host_bytes += one.count * count * task.host_bytes;
    };
    // The experts that are there are one task, in which the host computes beside the device; each
    // expert that is loaded is a task by itself.
    TaskSeconds there = of(asked.resident, false);
    there += of(asked.held, layer.is_below);
    add(there, 1);
    if (asked.missing > 0) add(of(1, layer.is_below), asked.missing);
    // At the ends of these tasks and of what is behind them.
    add_hand_overs(one.count * (2 + asked.missing));
  }
  void add_hand_overs(double times) {
    const double seconds = times * hand_over_seconds(profile_);
    last_sums_.held += seconds;
    last_sums_.device += seconds;
  }
  // At the ends of tasks that others wait for, but for experts'.
  void add_ends(const MicroBatchLoad& load) {
    if (hand_over_seconds(profile_) == 0) return;
    double times = 0;
    for (size_t i = 0; i < model_.sublayers.size(); ++i) {
      const SublayerShape& sublayer = model_.sublayers[i];
      const StateBytes bytes = sublayer.kind == SublayerKind::kAttention
                                   ? load.state_of(sublayer.state.group, sublayer.state.is_reader)
                                   : StateBytes{};
      const bool moves = load.activation_bytes > 0 || load.activation_up_bytes > 0 ||
                         !plan_.parts[i].empty() || bytes != StateBytes{};
      times += bytes.outputs > 0 ? 2 : moves;
    }
    add_hand_overs(times);
  }
  void add_task(const Distinct& one, ComputeStep step, const BatchWork& work) {
    const TaskSeconds task =
        compute_seconds(model_, plan_, profile_, kv_dtype_, one.sublayer, step, work, products_);
    last_sums_.host_bytes += one.count * task.host_bytes;
    const double held = one.count * task_duration(task, profile_.shares_cores);
    if (step == ComputeStep::kHostAttention) {
      last_sums_.host += held;
      return;
    }
    last_sums_.held += held;
    last_sums_.device += one.count * own_seconds(task, profile_.shares_cores);
    last_sums_.inplace += one.count * task.host;
  }
  void add_sublayer(const Distinct& one, const BatchWork& work, const MicroBatchLoad& load) {
    const SublayerShape& sublayer = model_.sublayers[one.sublayer];
    const StateBytes bytes = sublayer.kind == SublayerKind::kAttention
                                 ? load.state_of(sublayer.state.group, sublayer.state.is_reader)
                                 : StateBytes{};
    if (demands_ && plan_.experts[one.sublayer].experts > 0) {
      add_task(one, ComputeStep::kUntilRoute, work);
      return add_experts(one, work);
    }
    if (bytes.attends_on_host()) add_task(one, ComputeStep::kHostAttention, work);
    if (bytes.outputs == 0) return add_task(one, ComputeStep::kWhole, work);
    add_task(one, ComputeStep::kBeforeAttention, work);
    add_task(one, ComputeStep::kAfterAttention, work);
  }

  const ModelShape& model_;
  const Plan& plan_;
  const Profile& profile_;
  KvFormat kv_dtype_;
  ProductSeconds& products_;
  bool has_last_ = false;
  bool demands_ = false;
  BatchWork last_;
  std::vector<StateBytes> last_state_;
  std::vector<StateBytes> last_shared_;
  Sums last_sums_;
};

// Collects a block's terms, scaled from the sampled passes to all.
class Terms {
 public:
  Terms(Prediction& out, std::vector<CostTerm>* terms) : out_(out), terms_(terms) {}
  void add(Lane lane, const char* what, bool is_prefill, double amount, double seconds) {
    (is_prefill ? out_.prefill_lanes : out_.decode_lanes)[lane] += seconds;
    if (!terms_ || amount <= 0) return;
    for (CostTerm& term : *terms_)
      if (term.lane == lane && term.is_prefill == is_prefill && term.what == what) {
        term.amount += amount;
        term.seconds += seconds;
        return;
      }
    terms_->push_back({lane, what, is_prefill, amount, seconds});
  }
  void add_host_memory(bool is_prefill, double seconds) {
    (is_prefill ? out_.prefill_host_memory_seconds : out_.decode_host_memory_seconds) += seconds;
  }
  // Seconds that follow each other whatever lanes they are on.
  void add_chain(bool is_prefill, double seconds) { chains_[is_prefill] += seconds; }
  double chain(bool is_prefill) const { return chains_[is_prefill]; }
  void add_held(bool is_prefill, double seconds, double inplace_seconds) {
    (is_prefill ? out_.prefill_held_seconds : out_.decode_held_seconds) += seconds;
    (is_prefill ? out_.prefill_inplace_seconds : out_.decode_inplace_seconds) += inplace_seconds;
  }

 private:
  Prediction& out_;
  std::vector<CostTerm>* terms_;
  std::array<double, 2> chains_{};
};

// In passes of a class.
StreamedBytes streamed_bytes(const Plan& plan, const Profile& profile, size_t pass_class) {
  StreamedBytes out;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const auto& parts = plan.parts[i];
    for (size_t p = 0; p < parts.size(); ++p) {
      const PlanPart& part = parts[p];
      if (part.expert >= 0) {  // the first of a matrix, whose other experts' follow
        p += static_cast<size_t>(plan.experts[i].others()) - 1;
        continue;
      }
      if (!part.is_loaded_in(pass_class)) continue;
      if (part.from_disk) {
        const auto read = static_cast<double>(part.read_bytes());
        out.disk += read;
        out.small_reads_seconds += profile.part_read_seconds(read);
        out.repack_seconds += repack_seconds(plan, part);
      }
      if (!plan.paths.weights(part.from_disk).crosses_link()) continue;
      out.up += static_cast<double>(part.bytes);
      out.parts += 1;
    }
  }
  return out;
}

// And of experts that have slots: all that are in none, or what each micro-batch asks for. A pass
// that does not ask sends those in slots below a device up, too.
void add_experts(const ModelShape& model, const Plan& plan, const Profile& profile,
                 const PassWork& pass, StreamedBytes& out) {
  const bool demands = plan.demands_experts(pass.routed());
  const ScheduleExperts* before = nullptr;
  double loads = 0;
  for (size_t i = 0; i < plan.experts.size(); ++i) {
    const ScheduleExperts& layer = plan.experts[i];
    if (layer.experts == 0) continue;
    const bool is_like = before && before->experts == layer.experts &&
                         before->resident == layer.resident && before->slots == layer.slots;
    if (!is_like) loads = loaded_experts(model, layer, demands, pass.work);
    before = &layer;
    for (const int32_t first : layer.first_parts) {
      const PlanPart& part = plan.parts[i][static_cast<size_t>(first)];
      out.add_read(profile, static_cast<double>(part.read_bytes()), loads);
      out.repack_seconds += loads * repack_seconds(plan, part);
      if (!layer.is_below || demands) continue;
      out.up += static_cast<double>(layer.others() * part.bytes);
      out.parts += static_cast<double>(layer.others());
    }
  }
}

// So many micro-batches from `first` on move and compute the same.
size_t alike_from(const PassWork& pass, size_t first) {
  size_t end = first + 1;
  while (end < pass.loads.size() && pass.work[end] == pass.work[first] &&
         pass.loads[end].moves_like(pass.loads[first]))
    ++end;
  return end - first;
}

void add_pass(const ModelShape& model, const Plan& plan, const Profile& profile,
              const PassWork& pass, StreamedBytes weights, const LaneSharing& sharing,
              ComputeCosts& compute, Terms& terms) {
  const double scale = pass.passes;
  const auto visits = static_cast<double>(model.sublayers.size()) - 1;  // that load what one stored
  const bool p = pass.is_prefill;
  const bool demands = plan.demands_experts(pass.routed());
  add_experts(model, plan, profile, pass, weights);
  compute.begin_pass(demands);
  const Link& link = profile.link;
  double link_bytes = 0;
  double read_bytes = 0;
  // Of the host's memory.
  double memory_bytes = plan.paths.disk_reaches_device() ? -weights.disk : 0;
  double times = 1;  // what is moved
  const auto move = [&](Lane lane, const char* what, double bytes, double copies,
                        double requests_seconds = 0) {
    const double rate = lane == Lane::kDiskRead       ? profile.disk_read()
                        : lane == Lane::kDiskWrite    ? profile.disk_write()
                        : lane == Lane::kHostToDevice ? link.to_device.value
                                                      : link.to_host.value;
    const bool is_link = lane == Lane::kHostToDevice || lane == Lane::kDeviceToHost;
    const double one = is_link ? link.latency_seconds.value : profile.disk().latency_seconds.value;
    const double latency = bytes > 0 ? copies * one : 0;
    bytes *= times;
    if (is_link) link_bytes += bytes;
    if (lane == Lane::kDiskRead) read_bytes += bytes;
    memory_bytes += bytes;
    terms.add(lane, what, p, scale * bytes,
              scale * (bytes / rate + times * (latency + requests_seconds)));
  };
  // Rows are repacked while others are read: the lane waits for what is slower.
  const double read_seconds = weights.disk / profile.disk_read();
  move(Lane::kDiskRead, "weights from disk", weights.disk, ring_waits(plan, weights.disk),
       std::max(weights.small_reads_seconds, weights.repack_seconds - read_seconds));
  if (weights.parts > 0) move(Lane::kHostToDevice, "weights up", weights.up, weights.parts);
  ComputeCosts::Sums sums;
  double exchanged = 0;  // seconds, for attention on the host
  const auto move_state = [&](const KvPlan& kv, const StateBytes& bytes, int64_t of_so_many) {
    const auto layers = static_cast<double>(of_so_many);
    const auto of_layers = [&](int64_t of_one) { return layers * static_cast<double>(of_one); };
    const auto page = static_cast<double>(round_up(kv.page_bytes, kDiskBlock));
    move(Lane::kDiskRead, "KV from disk", of_layers(bytes.load), layers,
         profile.page_read_seconds(of_layers(bytes.load) / page));
    move(Lane::kDiskWrite, "KV to disk", of_layers(bytes.store), layers,
         profile.page_write_seconds(of_layers(bytes.store) / page));
    if (!plan.paths.state.crosses_link()) return;
    move(Lane::kHostToDevice, "KV up", of_layers(bytes.up), layers);
    move(Lane::kDeviceToHost, "KV down", of_layers(bytes.down), layers);
    move(Lane::kDeviceToHost, "queries down", of_layers(bytes.queries), layers);
    move(Lane::kHostToDevice, "attention outputs up", of_layers(bytes.outputs), layers);
    if (bytes.outputs > 0)
      exchanged += of_layers(bytes.queries) / link.to_host.value +
                   of_layers(bytes.outputs) / link.to_device.value +
                   2 * layers * link.latency_seconds.value;
  };
  for (size_t i = 0; i < pass.loads.size(); i += static_cast<size_t>(times)) {
    const MicroBatchLoad& load = pass.loads[i];
    times = static_cast<double>(alike_from(pass, i));
    for (size_t group = 0; group < plan.kv.size(); ++group)
      move_state(plan.kv[group], load.state[group], plan.kv[group].num_layers);
    for (size_t group = 0; group < load.shared.size(); ++group)
      if (plan.kv[group].num_readers > 0)
        move_state(plan.kv[group], load.shared[group], plan.kv[group].num_readers);
    const auto rows = static_cast<double>(load.activation_bytes);
    move(Lane::kDiskRead, "activations from disk", visits * rows, 0);
    move(Lane::kDiskWrite, "activations to disk", visits * rows, 0);
    if (plan.paths.state.crosses_link()) {
      const auto up = static_cast<double>(load.activation_up_bytes);
      move(Lane::kHostToDevice, "activations up", visits * up, visits);
      move(Lane::kDeviceToHost, "activations down", visits * up, visits);
    }
    compute.add(pass.work[i], load, times, sums);
  }
  const double delay =
      sharing.delayed(sums.held, read_bytes, weights.repack_seconds * plan.repack_core_share,
                      link_bytes) -
      sums.held;
  const double device = sums.device + delay;
  // With one micro-batch the device has nothing else to do while the host attends.
  if (pass.loads.size() == 1) terms.add_chain(p, scale * (sums.held + sums.host + exchanged));
  // What is asked for loads beside the experts that are there, and not before the route has run.
  if (demands)
    terms.add(Lane::kDiskRead, "waits for routes", p, 1, scale * (sums.held - sums.experts));
  terms.add(Lane::kDeviceCompute, "layers", p, device > 0 ? 1 : 0, scale * device);
  terms.add_held(p, scale * (sums.held + delay), scale * sums.inplace);
  terms.add(Lane::kHostCompute, "rows in place", p, sums.inplace > 0 ? 1 : 0, scale * sums.inplace);
  terms.add(Lane::kHostCompute, "attention on the host", p, sums.host > 0 ? 1 : 0,
            scale * sums.host);
  if (profile.shares_host_memory())
    terms.add_host_memory(
        p, scale * (memory_bytes + sums.host_bytes) / profile.host.memory_read.value);
}

// Lanes run beside each other: a phase takes as long as the busiest. Two that share a resource take
// at least their sum over what it gives both together.
double phase_seconds(const PerLane<double>& lanes, double host_memory_seconds,
                     const LaneSharing& sharing) {
  double seconds = std::max(*std::max_element(lanes.begin(), lanes.end()), host_memory_seconds);
  for (const LaneSharing::Pair& pair : sharing.pairs())
    seconds = std::max(seconds, (lanes[pair.a] + lanes[pair.b]) / pair.capacity);
  return seconds;
}
}  // namespace

void StreamedBytes::add_read(const Profile& profile, double bytes, double times) {
  disk += times * bytes;
  small_reads_seconds += times * profile.part_read_seconds(bytes);
}

const std::vector<StreamedBytes>& KnownCosts::streamed(const Plan& plan, const Profile& profile) {
  for (const Streamed& one : streamed_)
    if (one.parts.begin() == plan.parts.begin() && one.of_class.size() == plan.classes.size())
      return one.of_class;
  constexpr size_t kMostKept = 32;  // as plans whose weights have their places are
  if (streamed_.size() >= kMostKept) streamed_.pop_front();
  Streamed& made = streamed_.emplace_back();
  made.parts = plan.parts;
  for (size_t i = 0; i < plan.classes.size(); ++i)
    made.of_class.push_back(streamed_bytes(plan, profile, i));
  return made.of_class;
}

Prediction predict(const ModelShape& model, const Plan& plan, const Profile& profile,
                   KvFormat kv_dtype, const JobShape& job, std::vector<CostTerm>* terms) {
  return predict(model, plan, profile, kv_dtype, job,
                 block_passes(model, plan, job, kPrefillSamples, kDecodeSamples), terms);
}

PassMaker sampled_passes(const ModelShape& model, const JobShape& job) noexcept {
  return {model, job, kPrefillSamples, kDecodeSamples};
}

Prediction predict(const ModelShape& model, const Plan& plan, const Profile& profile,
                   KvFormat kv_dtype, const JobShape& job, const BlockPasses& block,
                   std::vector<CostTerm>* terms, KnownCosts* known) {
  KnownCosts none;
  if (!known) known = &none;
  Prediction out;
  out.block_sequences = block.sequences;
  out.new_tokens = static_cast<double>(block.sequences) * job.new_tokens;
  Terms collected(out, terms);
  ComputeCosts compute(model, plan, profile, kv_dtype, known->products());
  const LaneSharing sharing(profile);
  const std::vector<StreamedBytes>& weights = known->streamed(plan, profile);
  for (const PassWork& pass : block.passes)
    add_pass(model, plan, profile, pass, weights[pass.pass_class], sharing, compute, collected);
  out.prefill_seconds = std::max(phase_seconds(out.taken(true, profile.shares_cores),
                                               out.prefill_host_memory_seconds, sharing),
                                 collected.chain(true));
  out.decode_seconds = std::max(phase_seconds(out.taken(false, profile.shares_cores),
                                              out.decode_host_memory_seconds, sharing),
                                collected.chain(false));
  return out;
}

}  // namespace sluice::policy
