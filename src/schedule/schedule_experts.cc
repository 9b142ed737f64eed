// Layers of a mixture whose experts are not all where they are computed. A small pass asks, micro-
// batch by micro-batch, for those that its route has found: what is there is computed first, while
// the others load, each into the slot of the one that is worth least. A large pass loads all that
// are in no slot ahead, through the ring, and the slots stay as they are; where these are below a
// device it takes from them what it sends up.
#include <algorithm>

#include "src/base/error.h"
#include "src/schedule/schedule.h"

namespace sluice {

ExpertCache* ScheduleGenerator::expert_cache(size_t sublayer) noexcept {
  auto& slots = demand_.experts[sublayer];
  return slots ? &slots->cache : nullptr;
}

const ExpertCache* ScheduleGenerator::expert_cache(size_t sublayer) const noexcept {
  const auto& slots = demand_.experts[sublayer];
  return slots ? &slots->cache : nullptr;
}

ExpertCache::Counts ScheduleGenerator::expert_counts(size_t sublayer) const noexcept {
  const ExpertSlots& slots = *demand_.experts[sublayer];
  ExpertCache::Counts out = slots.cache.counts();
  out.asked += slots.asked_resident;
  out.found += slots.asked_resident;
  return out;
}

std::optional<AwaitedRoute> ScheduleGenerator::awaited() const noexcept {
  if (demand_.awaited < 0) return std::nullopt;
  return AwaitedRoute{running_.state[static_cast<size_t>(demand_.awaited)].compute,
                      running_.sublayer, demand_.awaited};
}

// Of a pass that loads all: who is in slots where it computes, which stay theirs while the task
// runs.
void ScheduleGenerator::use_held(Task& task) {
  const ScheduleExperts& layer = column().experts;
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  std::fill(slots.users.begin(), slots.users.end(), task.id);
  if (layer.is_below) {  // it has waited for what was sent up
    for (ExpertSlots::Sent& sent : slots.sent) sent.tasks.clear();
    return;
  }
  auto& places = std::get<ComputeWork>(task.work).experts;
  const std::span<const int32_t> held = slots.cache.held();
  for (size_t slot = 0; slot < held.size(); ++slot)
    places.push_back(
        {held[slot] + static_cast<int32_t>(layer.resident), static_cast<int32_t>(slot)});
}

void ScheduleGenerator::begin_routes(Tasks& out) {
  demand_.awaited = 0;
  add_route(out, 0);
}

void ScheduleGenerator::add_route(Tasks& out, int32_t micro_batch) {
  load_share(out, micro_batch);
  load_activations(out, running_.sublayer, micro_batch);
  compute(out, micro_batch);
}

// All its matrices, when the slot's last user has ended.
std::vector<TaskId> ScheduleGenerator::load_expert(Tasks& out, int32_t micro_batch,
                                                   const ExpertPlace& place) {
  std::vector<TaskId> waits;
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  const auto slot = static_cast<size_t>(place.slot);
  if (slots.users[slot] != kNoTask) waits.push_back(slots.users[slot]);
  waits.insert(waits.end(), slots.sent[slot].tasks.begin(), slots.sent[slot].tasks.end());
  slots.sent[slot].tasks.clear();
  const auto running =
      pass_ * static_cast<int64_t>(shape_.sublayers.size()) + int64_t{running_.sublayer};
  std::vector<TaskId> loads;
  for (const int32_t first : column().experts.first_parts) {
    const int32_t part = first + column().experts.turn_of(place.expert);
    loads.push_back(column().experts.is_below
                        ? load_below(out, part, micro_batch, place.slot, waits)
                        : load_part(out, {running, part, 0}, micro_batch, place.slot, waits));
  }
  return loads;
}

// From disk into a slot below the device.
TaskId ScheduleGenerator::load_below(Tasks& out, int32_t part, int32_t micro_batch, int32_t slot,
                                     std::vector<TaskId> waits) {
  Task& task = add(out, TaskKind::kLoadWeights, shape_.paths.weights_from_disk.hops.front().up,
                   running_.sublayer, micro_batch, PartLoad{part, 0, slot, -1});
  task.bytes = column().parts[static_cast<size_t>(part)].bytes;
  task.waits = std::move(waits);
  return task.id;
}

int32_t ScheduleGenerator::slot_below(const PendingLoad& load) const {
  const size_t index = static_cast<size_t>(load.running) % shape_.sublayers.size();
  const ScheduleExperts& layer = shape_.sublayers[index].experts;
  const int32_t expert = shape_.sublayers[index].parts[static_cast<size_t>(load.part)].expert;
  if (!layer.is_below || expert < 0) return -1;
  return demand_.experts[index]->cache.slot_of(layer.turn_of(expert));
}

// A part of one that is in a slot below the device, into the ring.
TaskId ScheduleGenerator::send_held(Tasks& out, const PendingLoad& load, int32_t micro_batch,
                                    int32_t slot, std::vector<TaskId> waits) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  const auto index = static_cast<size_t>(load.running % count);
  Task& task =
      add(out, TaskKind::kLoadWeights, shape_.paths.weights_from_host.hops.back().up,
          static_cast<int32_t>(index), micro_batch, PartLoad{load.part, load.offset, slot, -1});
  task.pass = load.running / count;
  task.bytes = shape_.sublayers[index].parts[static_cast<size_t>(load.part)].bytes;
  task.waits = std::move(waits);
  ExpertSlots::Sent& sent = demand_.experts[index]->sent[static_cast<size_t>(slot)];
  if (sent.running != load.running) {  // what is sent once more follows what nobody took
    task.waits.insert(task.waits.end(), sent.tasks.begin(), sent.tasks.end());
    sent = {load.running, {}};
  }
  sent.tasks.push_back(task.id);
  return task.id;
}

void ScheduleGenerator::compute_experts(Tasks& out, int32_t micro_batch,
                                        std::vector<ExpertPlace> places,
                                        std::vector<TaskId> waits) {
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  MicroBatchState& state = state_of(micro_batch);
  const std::vector<ExpertPlace> used = places;
  ComputeWork work;
  work.step = ComputeStep::kSomeExperts;
  work.part_offsets = weights_.offsets[static_cast<size_t>(running_.sublayer)];
  work.experts = std::move(places);
  if (moves_activations(load_of(micro_batch))) work.activation_slot = state.activation_slot;
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = std::move(waits);
  for (const ExpertPlace& place : used)
    if (place.slot >= 0) slots.users[static_cast<size_t>(place.slot)] = task.id;
  state.compute = task.id;
}

// Experts that lack a slot take their turns in half of the slots, so that some load while others
// are computed, however many there are.
void ScheduleGenerator::add_after_route(Tasks& out, int32_t micro_batch, const Routed& routed) {
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  const ScheduleExperts& layer = column().experts;
  const auto index = static_cast<size_t>(running_.sublayer);
  std::vector<ExpertPlace> places;
  std::vector<ExpertCache::Use> here, away;  // by turn
  for (const ExpertCache::Use& use : routed.experts) {
    if (layer.is_resident(use.expert)) {
      places.push_back({use.expert, -1});
      continue;
    }
    const int32_t turn = layer.turn_of(use.expert);
    (slots.cache.slot_of(turn) >= 0 ? here : away).push_back({turn, use.tokens});
  }
  slots.asked_resident += std::ssize(places);
  const auto place_of = [&](const ExpertCache::Place& place) {
    return ExpertPlace{place.expert + static_cast<int32_t>(layer.resident), place.slot};
  };
  for (const ExpertCache::Place& place : slots.cache.take(here, routed.tokens))
    places.push_back(place_of(place));
  if (!places.empty()) compute_experts(out, micro_batch, std::move(places), weights_.loads[index]);
  const auto together = static_cast<size_t>(std::max<int64_t>(slots.cache.slots() / 2, 1));
  for (size_t begin = 0; begin < away.size(); begin += together) {
    const size_t count = std::min(together, away.size() - begin);
    std::vector<std::pair<ExpertPlace, std::vector<TaskId>>> loaded;
    for (const ExpertCache::Place& place :
         slots.cache.take(std::span(away).subspan(begin, count), 0)) {
      const ExpertPlace at = place_of(place);
      loaded.emplace_back(at, load_expert(out, micro_batch, at));
    }
    for (auto& [place, loads] : loaded)
      compute_experts(out, micro_batch, {place}, std::move(loads));
  }
  ComputeWork work;
  work.step = ComputeStep::kAfterRoute;
  work.part_offsets = weights_.offsets[index];
  MicroBatchState& state = state_of(micro_batch);
  if (moves_activations(load_of(micro_batch))) work.activation_slot = state.activation_slot;
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = weights_.loads[index];
  state.compute = task.id;
  store_activations(out, micro_batch);
  prefetch(out, micro_batch);
  if (++demand_.awaited < static_cast<int32_t>(running_.loads.size()))
    return add_route(out, demand_.awaited);
  demand_.awaited = -1;
  end_column();
}

}  // namespace sluice
