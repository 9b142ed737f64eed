// KV and activations that live below the tier that computes: they climb the hops of their path
// before a step and come down after it, through a staging slot at every stop.
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

ScheduleGenerator::HopUse ScheduleGenerator::kv_use(const StateBytes& bytes,
                                                    const Hop& hop) noexcept {
  if (!hop.uses_disk()) return {true, bytes.up, bytes.down};
  return {bytes.load + bytes.store > 0, bytes.load, bytes.store};
}

ScheduleGenerator::HopUse ScheduleGenerator::activation_use(const MicroBatchLoad& load,
                                                            const Hop& hop) const noexcept {
  const int64_t bytes = hop.uses_disk() ? load.activation_bytes : load.activation_up_bytes;
  return {!hop.uses_disk() || bytes > 0, bytes, bytes};
}

bool ScheduleGenerator::moves_kv(const StateBytes& bytes) const noexcept {
  return std::any_of(state_hops().begin(), state_hops().end(), [&](const Hop& hop) {
    const HopUse use = kv_use(bytes, hop);
    return use.up_bytes + use.down_bytes > 0;
  });
}

bool ScheduleGenerator::moves_activations(const MicroBatchLoad& load) const noexcept {
  return std::any_of(state_hops().begin(), state_hops().end(),
                     [&](const Hop& hop) { return activation_use(load, hop).up_bytes > 0; });
}

// Slots of a transfer over hop `hop`: above it, and below where what moves goes on or came from.
StateMove ScheduleGenerator::move_of(size_t hop, int32_t slot, bool goes_on) const noexcept {
  if (hop + 1 < state_hops().size()) return {-1, slot};
  return {slot, goes_on ? slot : -1};
}

// Keys and values of attention on the host stop a hop below.
size_t ScheduleGenerator::kv_hops(const StateBytes& bytes) const noexcept {
  return state_hops().size() - (bytes.attends_on_host() ? 1 : 0);
}

// Of keys and values that may be the task's, on whichever lane they were written.
void ScheduleGenerator::wait_for_writes(Task& task, int32_t sublayer,
                                        bool continues_previous) const {
  for (const auto* writes : {&kv_writes_.by_host, &kv_writes_.over_link, &kv_writes_.to_disk}) {
    const KvStores& of = (*writes)[static_cast<size_t>(sublayer)];
    wait_for(task, of.last_pass);
    if (continues_previous) wait_for(task, of.this_pass);
  }
}

void ScheduleGenerator::add_shared_write(int32_t sublayer, int32_t micro_batch, TaskId task) {
  KvWrites::Shared& shared = kv_writes_.shared[static_cast<size_t>(sublayer)];
  if (shared.is_read) shared.by.emplace_back(micro_batch, task);
}

// Of what an earlier sublayer keeps: all that it has written of the micro-batch in this pass, and
// of those that have other tokens of the same sequences. Its column is over.
void ScheduleGenerator::wait_for_source(Task& task, int32_t source, int32_t micro_batch) const {
  const auto index = static_cast<size_t>(source);
  wait_for(task, kv_writes_.all[index].last_pass);
  if (shape_.mixes_attention) wait_for_writes(task, source, false);
  int32_t first = micro_batch, last = micro_batch;
  while (first > 0 && load_of(first).continues_previous) --first;
  while (last + 1 < static_cast<int32_t>(running_.loads.size()) &&
         load_of(last + 1).continues_previous)
    ++last;
  for (const auto& [written, by] : kv_writes_.shared[index].by)
    if (written >= first && written <= last) wait_for(task, by);
}

void ScheduleGenerator::load_kv(Tasks& out, int32_t sublayer, int32_t micro_batch) {
  const StateBytes bytes = state_bytes(sublayer, micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  if (!moves_kv(bytes) || state.kv_loaded_sublayer >= sublayer) return;
  state.kv_loaded_sublayer = sublayer;
  state.kv_slot = static_cast<int32_t>(slots_.taken.kv++ % shape_.kv_slots);
  const auto slot = static_cast<size_t>(state.kv_slot);
  const KvStores& stores = kv_writes_.all[static_cast<size_t>(sublayer)];
  const int32_t source = shape_.sublayers[static_cast<size_t>(sublayer)].reads_from;
  bool comes_from_below = false;
  for (size_t i = 0; i < kv_hops(bytes); ++i) {
    const Hop& hop = state_hops()[i];
    const HopUse use = kv_use(bytes, hop);
    if (!use.is_used) continue;
    Task& task = add(out, TaskKind::kLoadKv, hop.up, sublayer, micro_batch,
                     move_of(i, state.kv_slot, comes_from_below));
    task.bytes = use.up_bytes;
    wait_for(task, slots_.kv[i][slot]);
    if (comes_from_below) wait_for(task, state.kv_load);
    wait_for(task, stores.last_pass);
    const bool continues = load_of(micro_batch).continues_previous;
    if (continues) wait_for(task, stores.this_pass);
    if (shape_.mixes_attention) wait_for_writes(task, sublayer, continues);
    if (source >= 0) wait_for_source(task, source, micro_batch);
    state.kv_load = task.id;
    comes_from_below = true;
  }
}

// `after`: the compute task that changed the pages. They go the way they came.
void ScheduleGenerator::store_kv(Tasks& out, int32_t micro_batch, TaskId after) {
  const StateBytes bytes = state_bytes(running_.sublayer, micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  const auto slot = static_cast<size_t>(state.kv_slot);
  TaskId last = after;
  for (size_t i = kv_hops(bytes); i-- > 0;) {
    const Hop& hop = state_hops()[i];
    const HopUse use = kv_use(bytes, hop);
    if (!use.is_used) continue;
    slots_.kv[i][slot] = last;
    if (use.down_bytes == 0) continue;
    const bool goes_on = i > 0 && kv_use(bytes, state_hops()[i - 1]).down_bytes > 0;
    Task& task = add(out, TaskKind::kStoreKv, hop.down, running_.sublayer, micro_batch,
                     move_of(i, state.kv_slot, goes_on));
    task.bytes = use.down_bytes;
    task.waits = {last};
    last = task.id;
    slots_.kv[i][slot] = last;
    kv_writes_.all[static_cast<size_t>(running_.sublayer)].this_pass.push_back(last);
    add_shared_write(running_.sublayer, micro_batch, last);
    if (!shape_.mixes_attention) continue;
    auto& stores = hop.uses_disk() ? kv_writes_.to_disk : kv_writes_.over_link;
    stores[static_cast<size_t>(running_.sublayer)].this_pass.push_back(last);
  }
}

void ScheduleGenerator::load_activations(Tasks& out, int32_t sublayer, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  MicroBatchState& state = state_of(micro_batch);
  if (!moves_activations(load) || state.activation_loaded_sublayer >= sublayer) return;
  state.activation_loaded_sublayer = sublayer;
  state.activation_slot =
      static_cast<int32_t>(slots_.taken.activations++ % shape_.activation_slots);
  const auto slot = static_cast<size_t>(state.activation_slot);
  // The first sublayer writes the hidden state: its tasks only take the slots.
  const bool is_first = sublayer == 0;
  bool comes_from_below = false;
  for (size_t i = 0; i < state_hops().size(); ++i) {
    const Hop& hop = state_hops()[i];
    const HopUse use = activation_use(load, hop);
    if (!use.is_used) continue;
    Task& task = add(out, TaskKind::kLoadActivations, hop.up, sublayer, micro_batch,
                     move_of(i, state.activation_slot, comes_from_below));
    task.bytes = is_first ? 0 : use.up_bytes;
    wait_for(task, slots_.activations[i][slot]);
    if (comes_from_below) {
      wait_for(task, state.activation_load);
      slots_.activations[i - 1][slot] = task.id;
    }
    wait_for(task, state.activation_store);
    state.activation_load = task.id;
    comes_from_below = true;
  }
}

void ScheduleGenerator::store_activations(Tasks& out, int32_t micro_batch) {
  const MicroBatchLoad& load = load_of(micro_batch);
  if (!moves_activations(load)) return;
  MicroBatchState& state = state_of(micro_batch);
  const auto slot = static_cast<size_t>(state.activation_slot);
  slots_.activations.back()[slot] = state.compute;
  if (running_.sublayer + 1 == static_cast<int32_t>(shape_.sublayers.size())) return;
  TaskId last = state.compute;
  for (size_t i = state_hops().size(); i-- > 0;) {
    const Hop& hop = state_hops()[i];
    const HopUse use = activation_use(load, hop);
    if (!use.is_used) continue;
    const bool goes_on = i > 0 && activation_use(load, state_hops()[i - 1]).is_used;
    Task& task = add(out, TaskKind::kStoreActivations, hop.down, running_.sublayer, micro_batch,
                     move_of(i, state.activation_slot, goes_on));
    task.bytes = use.down_bytes;
    task.waits = {last};
    last = task.id;
    slots_.activations[i][slot] = last;
  }
  state.activation_store = last;
}

// Loads what the steps after (running_.sublayer, micro_batch) need while that step computes:
// activations of the next step in column order, KV of the next step that attends.
void ScheduleGenerator::prefetch(Tasks& out, int32_t micro_batch) {
  const auto micro_batches = static_cast<int32_t>(running_.loads.size());
  const auto sublayers = static_cast<int32_t>(shape_.sublayers.size());
  const bool column_ends = micro_batch + 1 == micro_batches;
  // What the first micro-batch needs in the next column may be what it has not computed yet in
  // this.
  const int32_t next = column_ends ? 0 : micro_batch + 1;
  int32_t next_sublayer = column_ends ? running_.sublayer + 1 : running_.sublayer;
  const bool is_ready = !column_ends || micro_batches > 1 || !is_cut(running_.loads[0]);
  if (next_sublayer < sublayers && is_ready) load_activations(out, next_sublayer, next);

  const auto attends = [&](int32_t index) {
    return shape_.sublayers[static_cast<size_t>(index)].has_attention;
  };
  if (!column_ends && attends(running_.sublayer)) {
    load_kv(out, running_.sublayer, next);
    return;
  }
  next_sublayer = running_.sublayer + 1;
  while (next_sublayer < sublayers && !attends(next_sublayer)) ++next_sublayer;
  if (next_sublayer < sublayers) load_kv(out, next_sublayer, 0);
}

}  // namespace sluice
