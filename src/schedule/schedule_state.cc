// KV and activations that live below the tier that computes: staged up before a step, down after
// it.
#include <algorithm>

#include "src/schedule/schedule.h"

namespace sluice {

namespace {
void wait_for(Task& task, TaskId id) {
  if (id != kNoTask) task.waits.push_back(id);
}
void wait_for(Task& task, const std::vector<TaskId>& ids) {
  task.waits.insert(task.waits.end(), ids.begin(), ids.end());
}
}  // namespace

// A transfer of the disk stops below a device in the host's memory.
StateMove ScheduleGenerator::disk_move(int32_t slot) const noexcept {
  return shape_.has_device ? StateMove{-1, slot} : StateMove{slot, -1};
}

bool ScheduleGenerator::moves_kv(const MicroBatchLoad& load) const noexcept {
  int64_t bytes = load.kv_load_bytes + load.kv_store_bytes;
  if (shape_.has_device) bytes += load.kv_up_bytes + load.kv_down_bytes;
  return bytes > 0;
}

bool ScheduleGenerator::moves_activations(const MicroBatchLoad& load) const noexcept {
  return load.activation_bytes > 0 || (shape_.has_device && load.activation_up_bytes > 0);
}

void ScheduleGenerator::load_kv(Tasks& out, int32_t sublayer, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  if (!shape_.sublayers[static_cast<size_t>(sublayer)].has_attention) return;
  if (!moves_kv(load) || state.kv_loaded_sublayer >= sublayer) return;
  state.kv_loaded_sublayer = sublayer;
  state.kv_slot = static_cast<int32_t>(kv_slot_counter_++ % shape_.kv_slots);
  const auto slot = static_cast<size_t>(state.kv_slot);
  const KvStores& stores = kv_stores_[static_cast<size_t>(sublayer)];
  const auto wait_for_stores = [&](Task& task) {
    wait_for(task, stores.last_pass);
    if (load.continues_previous) wait_for(task, stores.this_pass);
  };
  const bool uses_disk = load.kv_load_bytes + load.kv_store_bytes > 0;
  if (uses_disk) {
    Task& task = add(out, TaskKind::kLoadKv, Lane::kDiskRead, sublayer, micro_batch,
                     disk_move(state.kv_slot));
    task.bytes = load.kv_load_bytes;
    wait_for(task, (shape_.has_device ? host_kv_slots_ : kv_slots_)[slot]);
    wait_for_stores(task);
    state.kv_load = task.id;
  }
  if (!shape_.has_device || load.attends_on_host()) return;
  Task& task = add(out, TaskKind::kLoadKv, Lane::kHostToDevice, sublayer, micro_batch,
                   StateMove{state.kv_slot, uses_disk ? state.kv_slot : -1});
  task.bytes = load.kv_up_bytes;
  wait_for(task, kv_slots_[slot]);
  if (uses_disk) wait_for(task, state.kv_load);
  wait_for_stores(task);
  state.kv_load = task.id;
  if (uses_disk) host_kv_slots_[slot] = task.id;
}

// `after`: the compute task that changed the pages. They go the way they came.
void ScheduleGenerator::store_kv(Tasks& out, int32_t micro_batch, TaskId after) {
  const MicroBatchLoad& load = load_of(micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  const auto slot = static_cast<size_t>(state.kv_slot);
  KvStores& stores = kv_stores_[static_cast<size_t>(sublayer_)];
  const bool is_staged_up = shape_.has_device && !load.attends_on_host();
  TaskId last = after;
  if (is_staged_up) {
    kv_slots_[slot] = after;
    if (load.kv_down_bytes > 0) {
      Task& task = add(out, TaskKind::kStoreKv, Lane::kDeviceToHost, sublayer_, micro_batch,
                       StateMove{state.kv_slot, load.kv_store_bytes > 0 ? state.kv_slot : -1});
      task.bytes = load.kv_down_bytes;
      task.waits = {after};
      last = task.id;
      kv_slots_[slot] = last;
      stores.this_pass.push_back(last);
    }
  }
  std::vector<TaskId>& staging = shape_.has_device ? host_kv_slots_ : kv_slots_;
  const bool uses_disk = load.kv_load_bytes + load.kv_store_bytes > 0;
  if (uses_disk) staging[slot] = last;
  if (load.kv_store_bytes == 0) return;
  Task& task = add(out, TaskKind::kStoreKv, Lane::kDiskWrite, sublayer_, micro_batch,
                   disk_move(state.kv_slot));
  task.bytes = load.kv_store_bytes;
  task.waits = {last};
  staging[slot] = task.id;
  stores.this_pass.push_back(task.id);
}

void ScheduleGenerator::load_activations(Tasks& out, int32_t sublayer, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  if (!moves_activations(load) || state.activation_loaded_sublayer >= sublayer) return;
  state.activation_loaded_sublayer = sublayer;
  state.activation_slot =
      static_cast<int32_t>(activation_slot_counter_++ % shape_.activation_slots);
  const auto slot = static_cast<size_t>(state.activation_slot);
  // The first sublayer writes the hidden state: its tasks only take the slots.
  const bool is_first = sublayer == 0;
  if (load.activation_bytes > 0) {
    Task& task = add(out, TaskKind::kLoadActivations, Lane::kDiskRead, sublayer, micro_batch,
                     disk_move(state.activation_slot));
    task.bytes = is_first ? 0 : load.activation_bytes;
    wait_for(task, (shape_.has_device ? host_activation_slots_ : activation_slots_)[slot]);
    wait_for(task, state.activation_store);
    state.activation_load = task.id;
  }
  if (!shape_.has_device) return;
  Task& task =
      add(out, TaskKind::kLoadActivations, Lane::kHostToDevice, sublayer, micro_batch,
          StateMove{state.activation_slot, load.activation_bytes > 0 ? state.activation_slot : -1});
  task.bytes = is_first ? 0 : load.activation_up_bytes;
  wait_for(task, activation_slots_[slot]);
  if (load.activation_bytes > 0) {
    wait_for(task, state.activation_load);
    host_activation_slots_[slot] = task.id;
  }
  wait_for(task, state.activation_store);
  state.activation_load = task.id;
}

void ScheduleGenerator::store_activations(Tasks& out, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  if (!moves_activations(load)) return;
  MicroBatchState& state = state_of(micro_batch);
  const auto slot = static_cast<size_t>(state.activation_slot);
  activation_slots_[slot] = state.compute;
  if (sublayer_ + 1 == static_cast<int32_t>(shape_.sublayers.size())) return;
  TaskId last = state.compute;
  if (shape_.has_device) {
    Task& task = add(
        out, TaskKind::kStoreActivations, Lane::kDeviceToHost, sublayer_, micro_batch,
        StateMove{state.activation_slot, load.activation_bytes > 0 ? state.activation_slot : -1});
    task.bytes = load.activation_up_bytes;
    task.waits = {last};
    last = task.id;
    activation_slots_[slot] = last;
    if (load.activation_bytes > 0) host_activation_slots_[slot] = last;
  }
  if (load.activation_bytes > 0) {
    Task& task = add(out, TaskKind::kStoreActivations, Lane::kDiskWrite, sublayer_, micro_batch,
                     disk_move(state.activation_slot));
    task.bytes = load.activation_bytes;
    task.waits = {last};
    last = task.id;
    (shape_.has_device ? host_activation_slots_ : activation_slots_)[slot] = last;
  }
  state.activation_store = last;
}

// Loads what the steps after (sublayer_, micro_batch) need while that step computes: activations of
// the next step in column order, KV of the next step that attends.
void ScheduleGenerator::prefetch(Tasks& out, int32_t micro_batch) {
  const auto micro_batches = static_cast<int32_t>(loads_.size());
  const auto sublayers = static_cast<int32_t>(shape_.sublayers.size());
  const bool column_ends = micro_batch + 1 == micro_batches;
  // What the first micro-batch needs in the next column may be what it has not computed yet in
  // this.
  const int32_t next = column_ends ? 0 : micro_batch + 1;
  int32_t next_sublayer = column_ends ? sublayer_ + 1 : sublayer_;
  const bool is_ready = !column_ends || micro_batches > 1 || !is_cut(loads_[0]);
  if (next_sublayer < sublayers && is_ready) load_activations(out, next_sublayer, next);

  const auto attends = [&](int32_t index) {
    return shape_.sublayers[static_cast<size_t>(index)].has_attention;
  };
  if (!column_ends && attends(sublayer_)) {
    load_kv(out, sublayer_, next);
    return;
  }
  next_sublayer = sublayer_ + 1;
  while (next_sublayer < sublayers && !attends(next_sublayer)) ++next_sublayer;
  if (next_sublayer < sublayers) load_kv(out, next_sublayer, 0);
}

}  // namespace sluice
