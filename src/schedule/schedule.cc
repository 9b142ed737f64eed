#include "src/schedule/schedule.h"

#include <algorithm>
#include <numeric>

#include "src/base/error.h"

namespace sluice {

std::string_view lane_name(Lane lane) noexcept {
  constexpr std::string_view names[] = {"disk read",      "disk write",     "host to device",
                                        "device to host", "device compute", "host compute"};
  return names[static_cast<size_t>(lane)];
}

std::string_view task_kind_name(TaskKind kind) noexcept {
  constexpr std::string_view names[] = {"load weights", "load KV",  "load activations",
                                        "compute",      "store KV", "store activations"};
  return names[static_cast<size_t>(kind)];
}

int64_t ScheduleSublayer::streamed_bytes() const noexcept {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

ScheduleGenerator::ScheduleGenerator(ScheduleShape shape)
    : shape_(std::move(shape)),
      ring_(shape_.weight_ring_bytes),
      weight_loads_(shape_.sublayers.size()),
      weight_offsets_(shape_.sublayers.size()),
      kv_slots_(static_cast<size_t>(shape_.kv_slots)),
      activation_slots_(static_cast<size_t>(shape_.activation_slots)),
      kv_stores_(shape_.sublayers.size()) {
  SLUICE_ASSERT(!shape_.sublayers.empty(), "a model has sublayers");
  for (const ScheduleSublayer& sublayer : shape_.sublayers)
    SLUICE_ASSERT(sublayer.streamed_bytes() <= shape_.weight_ring_bytes, "the plan sizes the ring");
}

Task& ScheduleGenerator::add(std::vector<Task>& out, TaskKind kind, Lane lane, int32_t sublayer,
                             int32_t micro_batch) {
  Task& task = out.emplace_back();
  task.id = next_id_++;
  task.kind = kind;
  task.lane = lane;
  task.pass = pass_;
  task.sublayer = sublayer;
  task.micro_batch = micro_batch;
  return task;
}

// Decides, at the start of column `running`, which parts the ring can take beside it.
void ScheduleGenerator::plan_weight_loads(int64_t running, bool more_follow) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const int64_t pass_end = (pass_ + 1) * count;
  // Not beyond one whole round: a sublayer's places belong to one pass at a time.
  const int64_t limit = std::min(more_follow ? pass_end + count : pass_end, running + count);
  ring_.release_before(running);
  pending_.clear();
  for (; next_load_ < limit; ++next_load_, next_part_ = 0) {
    const auto sublayer = static_cast<size_t>(next_load_ % count);
    const std::vector<int64_t>& parts = shape_.sublayers[sublayer].parts;
    if (next_part_ == 0) {
      weight_loads_[sublayer].clear();
      weight_offsets_[sublayer].clear();
    }
    for (; next_part_ < static_cast<int32_t>(parts.size()); ++next_part_) {
      const auto offset = ring_.place(next_load_, parts[static_cast<size_t>(next_part_)]);
      if (!offset) break;
      weight_offsets_[sublayer].push_back(*offset);
      pending_.push_back({next_load_, next_part_, *offset});
    }
    if (next_part_ < static_cast<int32_t>(parts.size())) break;
  }
  SLUICE_ASSERT(next_load_ > running, "the ring holds at least the current sublayer");
}

// Tasks for the pending parts [first, last).
void ScheduleGenerator::load_weights(std::vector<Task>& out, size_t first, size_t last,
                                     int32_t micro_batch) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  for (size_t i = first; i < last; ++i) {
    const PendingLoad& load = pending_[i];
    const auto sublayer = static_cast<int32_t>(load.running % count);
    const auto index = static_cast<size_t>(sublayer);
    Task& task = add(out, TaskKind::kLoadWeights, Lane::kDiskRead, sublayer, micro_batch);
    task.pass = load.running / count;
    task.part = load.part;
    task.offset = load.offset;
    task.bytes = shape_.sublayers[index].parts[static_cast<size_t>(load.part)];
    // The ring was placed with everything before the current column released.
    if (last_column_compute_ != kNoTask) task.waits.push_back(last_column_compute_);
    weight_loads_[index].push_back(task.id);
  }
}

void ScheduleGenerator::load_kv(std::vector<Task>& out, int32_t sublayer, int32_t micro_batch,
                                const MicroBatchLoad& load) {
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  if (!shape_.sublayers[static_cast<size_t>(sublayer)].has_attention) return;
  if (load.kv_load_bytes + load.kv_store_bytes == 0 || state.kv_loaded_sublayer >= sublayer) return;
  state.kv_loaded_sublayer = sublayer;
  state.kv_slot = static_cast<int32_t>(kv_slot_counter_++ % shape_.kv_slots);
  Task& task = add(out, TaskKind::kLoadKv, Lane::kDiskRead, sublayer, micro_batch);
  task.slot = state.kv_slot;
  task.bytes = load.kv_load_bytes;
  const SlotUse& use = kv_slots_[static_cast<size_t>(state.kv_slot)];
  if (use.last_reader != kNoTask) task.waits.push_back(use.last_reader);
  const KvStores& stores = kv_stores_[static_cast<size_t>(sublayer)];
  task.waits.insert(task.waits.end(), stores.last_pass.begin(), stores.last_pass.end());
  if (load.continues_previous)
    task.waits.insert(task.waits.end(), stores.this_pass.begin(), stores.this_pass.end());
  state.kv_load = task.id;
}

void ScheduleGenerator::load_activations(std::vector<Task>& out, int32_t sublayer,
                                         int32_t micro_batch, const MicroBatchLoad& load) {
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  if (load.activation_bytes == 0 || state.activation_loaded_sublayer >= sublayer) return;
  state.activation_loaded_sublayer = sublayer;
  state.activation_slot =
      static_cast<int32_t>(activation_slot_counter_++ % shape_.activation_slots);
  const SlotUse& use = activation_slots_[static_cast<size_t>(state.activation_slot)];
  // The first sublayer writes the hidden state: its task only takes the slot.
  Task& task = add(out, TaskKind::kLoadActivations, Lane::kDiskRead, sublayer, micro_batch);
  task.slot = state.activation_slot;
  task.bytes = sublayer == 0 ? 0 : load.activation_bytes;
  if (use.last_reader != kNoTask) task.waits.push_back(use.last_reader);
  if (state.activation_store != kNoTask) task.waits.push_back(state.activation_store);
  state.activation_load = task.id;
}

// Loads what the steps after (sublayer, micro_batch) need while that step computes: activations of
// the next step in column order, KV of the next step that attends.
void ScheduleGenerator::prefetch(std::vector<Task>& out, const std::vector<MicroBatchLoad>& loads,
                                 int32_t sublayer, int32_t micro_batch) {
  const auto micro_batches = static_cast<int32_t>(loads.size());
  const auto sublayers = static_cast<int32_t>(shape_.sublayers.size());
  const bool column_ends = micro_batch + 1 == micro_batches;
  const int32_t next = column_ends ? 0 : micro_batch + 1;
  int32_t next_sublayer = column_ends ? sublayer + 1 : sublayer;
  if (next_sublayer < sublayers)
    load_activations(out, next_sublayer, next, loads[static_cast<size_t>(next)]);

  const auto attends = [&](int32_t index) {
    return shape_.sublayers[static_cast<size_t>(index)].has_attention;
  };
  if (!column_ends && attends(sublayer)) {
    load_kv(out, sublayer, next, loads[static_cast<size_t>(next)]);
    return;
  }
  next_sublayer = sublayer + 1;
  while (next_sublayer < sublayers && !attends(next_sublayer)) ++next_sublayer;
  if (next_sublayer < sublayers) load_kv(out, next_sublayer, 0, loads[0]);
}

void ScheduleGenerator::compute_and_store(std::vector<Task>& out,
                                          const std::vector<MicroBatchLoad>& loads,
                                          int32_t sublayer, int32_t micro_batch) {
  const MicroBatchLoad& load = loads[static_cast<size_t>(micro_batch)];
  MicroBatchState& state = state_[static_cast<size_t>(micro_batch)];
  const auto index = static_cast<size_t>(sublayer);
  const bool is_last = sublayer + 1 == static_cast<int32_t>(shape_.sublayers.size());
  const bool uses_kv =
      shape_.sublayers[index].has_attention && load.kv_load_bytes + load.kv_store_bytes > 0;

  Task& compute = add(out, TaskKind::kCompute, Lane::kDeviceCompute, sublayer, micro_batch);
  compute.slot = uses_kv ? state.kv_slot : -1;
  compute.part_offsets = weight_offsets_[index];
  compute.waits = weight_loads_[index];
  if (uses_kv) compute.waits.push_back(state.kv_load);
  if (load.activation_bytes > 0) {
    compute.activation_slot = state.activation_slot;
    compute.waits.push_back(state.activation_load);
  }
  state.compute = compute.id;
  const TaskId compute_id = compute.id;

  if (uses_kv) {
    kv_slots_[static_cast<size_t>(state.kv_slot)].last_reader = compute_id;
    if (load.kv_store_bytes > 0) {
      Task& store = add(out, TaskKind::kStoreKv, Lane::kDiskWrite, sublayer, micro_batch);
      store.slot = state.kv_slot;
      store.bytes = load.kv_store_bytes;
      store.waits = {compute_id};
      kv_slots_[static_cast<size_t>(state.kv_slot)].last_reader = store.id;
      kv_stores_[index].this_pass.push_back(store.id);
    }
  }
  if (load.activation_bytes > 0) {
    SlotUse& use = activation_slots_[static_cast<size_t>(state.activation_slot)];
    use.last_reader = compute_id;
    if (!is_last) {
      Task& store = add(out, TaskKind::kStoreActivations, Lane::kDiskWrite, sublayer, micro_batch);
      store.slot = state.activation_slot;
      store.bytes = load.activation_bytes;
      store.waits = {compute_id};
      use.last_reader = store.id;
      state.activation_store = store.id;
    }
  }
}

std::vector<Task> ScheduleGenerator::next_pass(const std::vector<MicroBatchLoad>& micro_batches,
                                               bool more_follow) {
  SLUICE_ASSERT(!micro_batches.empty(), "a pass has micro-batches");
  const auto sublayers = static_cast<int32_t>(shape_.sublayers.size());
  const auto count = static_cast<int32_t>(micro_batches.size());
  std::vector<Task> out;
  out.reserve(static_cast<size_t>(sublayers) * static_cast<size_t>(count) * 4);
  state_.assign(static_cast<size_t>(count), {});
  for (int32_t sublayer = 0; sublayer < sublayers; ++sublayer) {
    const int64_t running = pass_ * sublayers + sublayer;
    plan_weight_loads(running, more_follow);
    // What the column itself still lacks (a ring too small to look ahead) comes before its first
    // step; the rest is spread over its steps.
    const auto late = static_cast<size_t>(
        std::count_if(pending_.begin(), pending_.end(),
                      [&](const PendingLoad& load) { return load.running == running; }));
    load_weights(out, 0, late, 0);
    const size_t ahead = pending_.size() - late;
    for (int32_t micro_batch = 0; micro_batch < count; ++micro_batch) {
      const MicroBatchLoad& load = micro_batches[static_cast<size_t>(micro_batch)];
      const auto step = static_cast<size_t>(micro_batch);
      const auto steps = static_cast<size_t>(count);
      load_weights(out, late + (ahead * step + steps - 1) / steps,
                   late + (ahead * (step + 1) + steps - 1) / steps, micro_batch);
      load_activations(out, sublayer, micro_batch, load);
      load_kv(out, sublayer, micro_batch, load);
      compute_and_store(out, micro_batches, sublayer, micro_batch);
      prefetch(out, micro_batches, sublayer, micro_batch);
    }
    last_column_compute_ = state_.back().compute;
  }
  for (KvStores& stores : kv_stores_) {
    if (stores.this_pass.empty())
      continue;  // what an earlier pass stored still has to be waited for
    stores.last_pass = std::move(stores.this_pass);
    stores.this_pass.clear();
  }
  ++pass_;
  return out;
}

}  // namespace sluice
