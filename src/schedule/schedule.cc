#include "src/schedule/schedule.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

std::string_view task_kind_name(TaskKind kind) noexcept {
  constexpr std::string_view names[] = {"load weights", "load KV",       "load activations",
                                        "compute",      "store KV",      "store activations",
                                        "send queries", "return outputs"};
  return names[static_cast<size_t>(kind)];
}

namespace {
// Of a sublayer's parts, perhaps without the experts that have slots: these are as large as any
// others.
template <typename Taken>
int64_t bytes_of(const ScheduleSublayer& sublayer, bool with_held, const Taken& takes) noexcept {
  int64_t bytes = 0;
  for (const SchedulePart& part : sublayer.parts)
    if (part.expert < 0 || !sublayer.experts.is_always_asked) bytes += takes(part) ? part.bytes : 0;
  if (with_held || sublayer.experts.is_always_asked) return bytes;
  for (const int32_t first : sublayer.experts.first_parts) {
    const SchedulePart& part = sublayer.parts[static_cast<size_t>(first)];
    if (takes(part)) bytes -= sublayer.experts.slots * part.bytes;
  }
  return bytes;
}
}  // namespace

int64_t ScheduleSublayer::streamed_bytes() const noexcept {
  return bytes_of(*this, experts.is_below, [](const SchedulePart&) { return true; });
}

int64_t ScheduleSublayer::streamed_bytes(size_t pass_class) const noexcept {
  return bytes_of(*this, experts.is_below,
                  [&](const SchedulePart& part) { return part.is_loaded_in(pass_class); });
}

int64_t ScheduleSublayer::disk_bytes() const noexcept {
  return bytes_of(*this, false, [](const SchedulePart& part) { return part.from_disk; });
}

namespace {
// `count` of a sublayer's slots, from `first` on.
std::vector<ExpertSlot> own_slots(int32_t sublayer, int64_t first, int64_t count) {
  std::vector<ExpertSlot> out;
  for (int64_t slot = first; slot < first + count; ++slot)
    out.push_back({sublayer, static_cast<int32_t>(slot)});
  return out;
}
}  // namespace

ScheduleGenerator::ScheduleGenerator(ScheduleShape shape)
    : shape_(std::move(shape)),
      weights_{.ring = WeightRing(shape_.weight_ring_bytes)},
      host_stop_(shape_.host_ring_bytes) {
  const auto all_free = [](int32_t slots) {
    return std::vector<TaskId>(static_cast<size_t>(slots), kNoTask);
  };
  slots_.kv.assign(state_hops().size(), all_free(shape_.kv_slots));
  slots_.activations.assign(state_hops().size(), all_free(shape_.activation_slots));
  slots_.attention = all_free(shape_.attention_slots);
  weights_.loads.resize(shape_.sublayers.size());
  weights_.offsets.resize(shape_.sublayers.size());
  for (auto* writes :
       {&kv_writes_.all, &kv_writes_.by_host, &kv_writes_.over_link, &kv_writes_.to_disk})
    writes->resize(shape_.sublayers.size());
  kv_writes_.shared.resize(shape_.sublayers.size());
  SLUICE_ASSERT(!shape_.sublayers.empty(), "a model has sublayers");
  for (size_t i = 0; i < shape_.sublayers.size(); ++i) {
    const int32_t source = shape_.sublayers[i].reads_from;
    if (source < 0) continue;
    SLUICE_ASSERT(source < static_cast<int32_t>(i), "what is read is kept by an earlier sublayer");
    kv_writes_.shared[static_cast<size_t>(source)].is_read = true;
  }
  for (const ScheduleSublayer& sublayer : shape_.sublayers) {
    for (size_t one = 0; one < 8 * sizeof(SchedulePart::classes); ++one)
      SLUICE_ASSERT(sublayer.streamed_bytes(one) <= shape_.weight_ring_bytes,
                    "the plan sizes the ring");
    const ScheduleExperts& experts = sublayer.experts;
    SLUICE_ASSERT(experts.experts == 0 || !sublayer.has_attention,
                  "a sublayer is cut at its attention or at its route");
    auto& slots = demand_.experts.emplace_back();
    const auto index = static_cast<int32_t>(demand_.experts.size()) - 1;
    if (experts.experts > 0)
      slots = ExpertSlots{ExpertCache(experts.others(), experts.slots, shape_.expert_decay),
                          all_free(static_cast<int32_t>(experts.slots)),
                          std::vector<ExpertSlots::Sent>(static_cast<size_t>(experts.slots)),
                          own_slots(index, 0, experts.slots)};
    for (const ExpertSlot& memory : own_slots(index, experts.slots, experts.guess_slots))
      demand_.guesses.push_back({memory});
    for (const SchedulePart& part : sublayer.parts) {
      const Path& path = shape_.paths.weights(part.from_disk);
      SLUICE_ASSERT(!path.empty() && path.size() <= 2,
                    "what is streamed comes over one stop at most");
      const bool goes_to_slot = experts.is_below && experts.is_always_asked && part.expert >= 0;
      SLUICE_ASSERT(
          path.stops_between() == 0 || goes_to_slot || part.bytes <= shape_.host_ring_bytes,
          "the plan sizes the host's ring");
    }
  }
}

// What has a slot, or gets one when it is asked for, needs no room in the ring; but all that a pass
// sends up does.
bool ScheduleGenerator::is_loaded(int64_t running, const SchedulePart& part) const {
  if (!part.is_loaded_in(class_of(running))) return false;
  if (part.expert < 0) return true;
  const auto sublayer =
      static_cast<size_t>(running % static_cast<int64_t>(shape_.sublayers.size()));
  if (demands(running)) return false;
  const ScheduleExperts& layer = shape_.sublayers[sublayer].experts;
  SLUICE_ASSERT(!layer.is_always_asked, "all passes ask for these experts");
  return layer.is_below || demand_.experts[sublayer]->cache.slot_of(layer.turn_of(part.expert)) < 0;
}

// Decides, at the start of column `running`, which parts the ring can take beside it.
void ScheduleGenerator::plan_weight_loads(int64_t running) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const int64_t pass_end = (pass_ + 1) * count;
  // Not beyond one whole round: a sublayer's places belong to one pass at a time.
  const int64_t limit =
      std::min(running_.more_follow ? pass_end + count : pass_end, running + count);
  weights_.ring.release_before(running);
  weights_.pending.clear();
  for (; weights_.next_load < limit; ++weights_.next_load, weights_.next_part = 0) {
    const auto sublayer = static_cast<size_t>(weights_.next_load % count);
    const std::vector<SchedulePart>& parts = shape_.sublayers[sublayer].parts;
    if (weights_.next_part == 0) {
      weights_.loads[sublayer].clear();
      weights_.offsets[sublayer].clear();
    }
    for (; weights_.next_part < static_cast<int32_t>(parts.size()); ++weights_.next_part) {
      if (!is_loaded(weights_.next_load, parts[static_cast<size_t>(weights_.next_part)])) {
        weights_.offsets[sublayer].push_back(-1);
        continue;
      }
      const auto offset = weights_.ring.place(weights_.next_load,
                                              parts[static_cast<size_t>(weights_.next_part)].bytes);
      if (!offset) break;
      weights_.offsets[sublayer].push_back(*offset);
      weights_.pending.push_back({weights_.next_load, weights_.next_part, *offset});
    }
    if (weights_.next_part < static_cast<int32_t>(parts.size())) break;
  }
  SLUICE_ASSERT(weights_.next_load > running, "the ring holds at least the current sublayer");
}

// The disk's half of a load through host memory. It waits only for room there, so that the disk
// runs ahead of the link as far as the host's ring allows. The caller adds the copy that empties
// it.
TaskId ScheduleGenerator::read_to_host(Tasks& out, const PendingLoad& load, Lane lane,
                                       int32_t micro_batch, int64_t bytes, int64_t* host_offset) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  std::vector<TaskId> waits;
  *host_offset = host_stop_.place(bytes, waits);
  Task& task = add(out, TaskKind::kLoadWeights, lane, static_cast<int32_t>(load.running % count),
                   micro_batch, PartLoad{load.part, 0, -1, *host_offset});
  task.pass = load.running / count;
  task.bytes = bytes;
  task.waits = std::move(waits);
  return task.id;
}

// One part's way into the ring or its slot, which `waits` make free; the last task of it.
TaskId ScheduleGenerator::load_part(Tasks& out, const PendingLoad& load, int32_t micro_batch,
                                    std::optional<ExpertSlot> slot, std::vector<TaskId> waits) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const SchedulePart& part = shape_.sublayers[static_cast<size_t>(load.running % count)]
                                 .parts[static_cast<size_t>(load.part)];
  const Path& path = shape_.paths.weights(part.from_disk);
  const bool stops_between = path.stops_between() > 0;
  int64_t host_offset = -1;
  TaskId read = kNoTask;
  if (stops_between)
    read = read_to_host(out, load, path.hops.front().up, micro_batch, part.bytes, &host_offset);
  const auto sublayer = static_cast<int32_t>(load.running % count);
  PartLoad work{load.part, load.offset, -1, host_offset};
  if (slot) {
    work.slot = slot->slot;
    work.home = slot->home == sublayer ? -1 : slot->home;
  }
  Task& task = add(out, TaskKind::kLoadWeights, path.hops.back().up, sublayer, micro_batch, work);
  task.pass = load.running / count;
  task.bytes = part.bytes;
  if (stops_between) {
    task.waits.push_back(read);
    host_stop_.emptied_by(task.id);
  }
  task.waits.insert(task.waits.end(), waits.begin(), waits.end());
  return task.id;
}

// Tasks for the pending parts [first, last).
void ScheduleGenerator::load_weights(Tasks& out, size_t first, size_t last, int32_t micro_batch) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  // The ring was placed with everything before the current column released.
  std::vector<TaskId> waits;
  if (last_column_compute_ != kNoTask) waits.push_back(last_column_compute_);
  waits.insert(waits.end(), weights_.dropped.begin(), weights_.dropped.end());
  for (size_t i = first; i < last; ++i) {
    const PendingLoad& load = weights_.pending[i];
    const int32_t slot = slot_below(load);
    weights_.loads[static_cast<size_t>(load.running % count)].push_back(
        slot >= 0 ? send_held(out, load, micro_batch, slot, waits)
                  : load_part(out, load, micro_batch, std::nullopt, waits));
  }
}

// Whether the column's compute is cut in three around attention on the host. Where only fresh
// prompts send their keys and values down, nothing comes back up and the device need not stop.
bool ScheduleGenerator::is_cut(const MicroBatchLoad& load) const noexcept {
  return column().has_attention &&
         load.state_of(column().state_group, column().reads_from >= 0).outputs > 0;
}

StateBytes ScheduleGenerator::state_bytes(int32_t sublayer, int32_t micro_batch) const noexcept {
  const ScheduleSublayer& at = shape_.sublayers[static_cast<size_t>(sublayer)];
  return at.has_attention ? load_of(micro_batch).state_of(at.state_group, at.reads_from >= 0)
                          : StateBytes{};
}

void ScheduleGenerator::compute(Tasks& out, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  const auto index = static_cast<size_t>(running_.sublayer);
  const StateBytes bytes = state_bytes(running_.sublayer, micro_batch);
  const bool on_host = bytes.attends_on_host();
  const bool stages_kv = moves_kv(bytes) && !on_host;

  ComputeWork work;
  if (is_cut(load)) work.step = ComputeStep::kBeforeAttention;
  if (has_route()) work.step = ComputeStep::kUntilRoute;
  work.part_offsets = weights_.offsets[index];
  if (stages_kv) work.kv_slot = state.kv_slot;
  if (moves_activations(load)) work.activation_slot = state.activation_slot;
  if (on_host) {
    state.attention_slot = static_cast<int32_t>(slots_.taken.attention++ % shape_.attention_slots);
    work.attention_slot = state.attention_slot;
  }
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = weights_.loads[index];
  if (column().experts.experts > 0 && !has_route()) use_held(task);
  if (stages_kv) task.waits.push_back(state.kv_load);
  if (moves_activations(load)) task.waits.push_back(state.activation_load);
  if (on_host) {
    const TaskId last = slots_.attention[static_cast<size_t>(state.attention_slot)];
    if (last != kNoTask) task.waits.push_back(last);
  }
  state.compute = task.id;
  if (stages_kv) store_kv(out, micro_batch, state.compute);
  if (on_host) attend_on_host(out, micro_batch);
  if (!is_cut(load) && !has_route()) store_activations(out, micro_batch);
}

void ScheduleGenerator::attend_on_host(Tasks& out, int32_t micro_batch) {
  const StateBytes bytes = state_bytes(running_.sublayer, micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  Task& send = add(out, TaskKind::kSendQueries, state_hops().back().down, running_.sublayer,
                   micro_batch, AttentionMove{state.attention_slot});
  send.bytes = bytes.queries;
  send.waits = {state.compute};
  const TaskId sent = send.id;
  const bool stages_kv = moves_kv(bytes);
  ComputeWork work;
  work.step = ComputeStep::kHostAttention;
  work.attention_slot = state.attention_slot;
  if (stages_kv) work.host_kv_slot = state.kv_slot;
  Task& attend = add(out, TaskKind::kCompute, shape_.paths.host_compute, running_.sublayer,
                     micro_batch, std::move(work));
  attend.waits = {sent};
  if (stages_kv) attend.waits.push_back(state.kv_load);
  if (shape_.mixes_attention) {
    wait_for_writes(attend, running_.sublayer, load_of(micro_batch).continues_previous);
    kv_writes_.by_host[static_cast<size_t>(running_.sublayer)].this_pass.push_back(attend.id);
  }
  if (column().reads_from >= 0) wait_for_source(attend, column().reads_from, micro_batch);
  add_shared_write(running_.sublayer, micro_batch, attend.id);
  state.host_attention = attend.id;
  slots_.attention[static_cast<size_t>(state.attention_slot)] = attend.id;
  if (stages_kv) store_kv(out, micro_batch, state.host_attention);
}

// The third part of a cut sublayer, one micro-batch later, so that the device computes the next one
// while the host attends.
void ScheduleGenerator::finish_attention(Tasks& out, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  if (!is_cut(load)) return;
  MicroBatchState& state = state_of(micro_batch);
  const auto index = static_cast<size_t>(running_.sublayer);
  Task& back = add(out, TaskKind::kReturnOutputs, state_hops().back().up, running_.sublayer,
                   micro_batch, AttentionMove{state.attention_slot});
  back.bytes = state_bytes(running_.sublayer, micro_batch).outputs;
  back.waits = {state.host_attention};
  const TaskId returned = back.id;
  ComputeWork work;
  work.step = ComputeStep::kAfterAttention;
  work.attention_slot = state.attention_slot;
  work.part_offsets = weights_.offsets[index];
  if (moves_activations(load)) work.activation_slot = state.activation_slot;
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = weights_.loads[index];
  task.waits.push_back(returned);
  slots_.attention[static_cast<size_t>(state.attention_slot)] = task.id;
  state.compute = task.id;
  store_activations(out, micro_batch);
}

void ScheduleGenerator::find_used_lanes() {
  const auto use = [&](Lane lane) { running_.uses.set(lane); };
  running_.uses = {};
  use(shape_.paths.compute);
  for (const ScheduleSublayer& sublayer : shape_.sublayers)
    for (const SchedulePart& part : sublayer.parts)
      if (part.is_loaded_in(running_.classes.now) ||
          (running_.more_follow && part.is_loaded_in(running_.classes.next))) {
        for (const Hop& hop : shape_.paths.weights(part.from_disk).hops) use(hop.up);
        if (part.expert >= 0 && sublayer.experts.is_below)
          use(shape_.paths.weights_from_host.hops.back().up);
      }
  for (const MicroBatchLoad& load : running_.loads) {
    const bool moves_rows = moves_activations(load);
    const auto any_state = [&](const auto& is_true) {
      return std::any_of(load.state.begin(), load.state.end(), is_true) ||
             std::any_of(load.shared.begin(), load.shared.end(), is_true);
    };
    const auto is_used = [&](const Hop& hop) {
      return (moves_rows && activation_use(load, hop).is_used) ||
             any_state([&](const StateBytes& bytes) {
               return bytes.attends_on_host() || (moves_kv(bytes) && kv_use(bytes, hop).is_used);
             });
    };
    for (const Hop& hop : state_hops()) {
      if (!is_used(hop)) continue;
      use(hop.up);
      use(hop.down);
    }
    if (any_state([](const StateBytes& bytes) { return bytes.attends_on_host(); }))
      use(shape_.paths.host_compute);
  }
}

// Of passes of two classes, and of those that demand experts and those that do not where there are
// such layers.
bool ScheduleGenerator::have_same_parts(size_t one, size_t other) const noexcept {
  const auto has_slots = [](const ScheduleSublayer& sublayer) {
    return sublayer.experts.experts > 0;
  };
  if (std::any_of(shape_.sublayers.begin(), shape_.sublayers.end(), has_slots)) return false;
  const auto agree = [&](const SchedulePart& part) {
    return part.is_loaded_in(one) == part.is_loaded_in(other);
  };
  return std::all_of(shape_.sublayers.begin(), shape_.sublayers.end(), [&](const auto& sublayer) {
    return std::all_of(sublayer.parts.begin(), sublayer.parts.end(), agree);
  });
}

// What the last columns loaded for another class of pass: its room is filled again when the loads
// that are under way have ended.
void ScheduleGenerator::drop_loads_ahead() {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const int64_t first = pass_ * count;
  for (int64_t running = first; running <= weights_.next_load; ++running) {
    const auto& loads = weights_.loads[static_cast<size_t>(running % count)];
    const bool is_begun = running < weights_.next_load || weights_.next_part > 0;
    if (is_begun) weights_.dropped.insert(weights_.dropped.end(), loads.begin(), loads.end());
  }
  weights_.ring.drop_from(first);
  weights_.next_load = first;
  weights_.next_part = 0;
}

void ScheduleGenerator::begin_pass(std::vector<MicroBatchLoad> micro_batches, bool more_follow,
                                   PassClasses classes) {
  SLUICE_ASSERT(!running_.is_open, "a pass follows when the one before has no column left");
  SLUICE_ASSERT(!micro_batches.empty(), "a pass has micro-batches");
  weights_.dropped.clear();
  const bool is_expected =
      classes.now == running_.classes.next && classes.demands == running_.classes.next_demands;
  if (!is_expected && !have_same_parts(classes.now, running_.classes.next)) drop_loads_ahead();
  running_.classes = classes;
  running_.loads = std::move(micro_batches);
  running_.more_follow = more_follow;
  running_.is_open = true;
  running_.sublayer = 0;
  running_.state.assign(running_.loads.size(), {});
  find_used_lanes();
}

void ScheduleGenerator::begin_column(Tasks& out) {
  const auto sublayers = static_cast<int64_t>(shape_.sublayers.size());
  const int64_t running = pass_ * sublayers + running_.sublayer;
  plan_weight_loads(running);
  // What the column itself still lacks (a ring too small to look ahead) comes before its first
  // step; the rest is spread over its steps.
  weights_.late = static_cast<size_t>(
      std::count_if(weights_.pending.begin(), weights_.pending.end(),
                    [&](const PendingLoad& load) { return load.running == running; }));
  load_weights(out, 0, weights_.late, 0);
}

// The micro-batch's share of what loads ahead.
void ScheduleGenerator::load_share(Tasks& out, int32_t micro_batch) {
  const size_t ahead = weights_.pending.size() - weights_.late;
  const auto step = static_cast<size_t>(micro_batch);
  const size_t steps = running_.loads.size();
  load_weights(out, weights_.late + (ahead * step + steps - 1) / steps,
               weights_.late + (ahead * (step + 1) + steps - 1) / steps, micro_batch);
}

void ScheduleGenerator::add_step(Tasks& out, int32_t micro_batch) {
  load_share(out, micro_batch);
  load_activations(out, running_.sublayer, micro_batch);
  load_kv(out, running_.sublayer, micro_batch);
  compute(out, micro_batch);
  if (micro_batch > 0) finish_attention(out, micro_batch - 1);
  prefetch(out, micro_batch);
}

void ScheduleGenerator::end_column() {
  last_column_compute_ = kNoTask;
  for (const MicroBatchState& state : running_.state)
    last_column_compute_ = std::max(last_column_compute_, state.compute);
  if (++running_.sublayer < static_cast<int32_t>(shape_.sublayers.size())) return;
  for (auto* all :
       {&kv_writes_.all, &kv_writes_.by_host, &kv_writes_.over_link, &kv_writes_.to_disk})
    for (KvStores& stores : *all) {
      if (stores.this_pass.empty())
        continue;  // what an earlier pass stored still has to be waited for
      stores.last_pass = std::move(stores.this_pass);
      stores.this_pass.clear();
    }
  for (KvWrites::Shared& shared : kv_writes_.shared) shared.by.clear();
  ++pass_;
  running_.is_open = false;
}

std::vector<Task> ScheduleGenerator::next_column(const Routed& routed) {
  SLUICE_ASSERT(running_.is_open, "a pass has begun and has a column left");
  const auto count = static_cast<int32_t>(running_.loads.size());
  Tasks out;
  out.reserve(static_cast<size_t>(count) * 4);
  if (demand_.awaited >= 0) {
    add_after_route(out, demand_.awaited, routed);
    return out;
  }
  begin_column(out);
  if (has_route()) {
    begin_routes(out);
    return out;
  }
  for (int32_t micro_batch = 0; micro_batch < count; ++micro_batch) add_step(out, micro_batch);
  finish_attention(out, count - 1);
  end_column();
  return out;
}

}  // namespace sluice
