// Layers of a mixture whose experts are not all where they are computed. A small pass asks, micro-
// batch by micro-batch, for those that its route has found: what is in a slot is computed first,
// while the others load, each into the slot of the one that is worth least. A large pass loads all
// that are in no slot ahead, through the ring, and the slots stay as they are.
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

std::optional<AwaitedRoute> ScheduleGenerator::awaited() const noexcept {
  if (demand_.awaited < 0) return std::nullopt;
  return AwaitedRoute{running_.state[static_cast<size_t>(demand_.awaited)].compute,
                      running_.sublayer, demand_.awaited};
}

// Of a pass that loads all: who is in slots, which stay theirs while the task runs.
void ScheduleGenerator::use_held(Task& task) {
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  auto& places = std::get<ComputeWork>(task.work).experts;
  const std::span<const int32_t> held = slots.cache.held();
  for (size_t slot = 0; slot < held.size(); ++slot)
    places.push_back({held[slot], static_cast<int32_t>(slot)});
  std::fill(slots.users.begin(), slots.users.end(), task.id);
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
  const auto running =
      pass_ * static_cast<int64_t>(shape_.sublayers.size()) + int64_t{running_.sublayer};
  std::vector<TaskId> waits;
  const TaskId user = demand_.experts[static_cast<size_t>(running_.sublayer)]
                          ->users[static_cast<size_t>(place.slot)];
  if (user != kNoTask) waits.push_back(user);
  std::vector<TaskId> loads;
  for (const int32_t first : column().experts.first_parts)
    loads.push_back(
        load_part(out, {running, first + place.expert, 0}, micro_batch, place.slot, waits));
  return loads;
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
  for (const ExpertPlace& place : used) slots.users[static_cast<size_t>(place.slot)] = task.id;
  state.compute = task.id;
}

// Experts that lack a slot take their turns in half of the slots, so that some load while others
// are computed, however many there are.
void ScheduleGenerator::add_after_route(Tasks& out, int32_t micro_batch, const Routed& routed) {
  ExpertCache& cache = demand_.experts[static_cast<size_t>(running_.sublayer)]->cache;
  const auto index = static_cast<size_t>(running_.sublayer);
  std::vector<ExpertCache::Use> here, away;
  for (const ExpertCache::Use& use : routed.experts)
    (cache.slot_of(use.expert) >= 0 ? here : away).push_back(use);
  std::vector<ExpertPlace> places;
  for (const ExpertCache::Place& place : cache.take(here, routed.tokens))
    places.push_back({place.expert, place.slot});
  if (!places.empty()) compute_experts(out, micro_batch, std::move(places), weights_.loads[index]);
  const auto together = static_cast<size_t>(std::max<int64_t>(cache.slots() / 2, 1));
  for (size_t begin = 0; begin < away.size(); begin += together) {
    const size_t count = std::min(together, away.size() - begin);
    std::vector<std::pair<ExpertPlace, std::vector<TaskId>>> loaded;
    for (const ExpertCache::Place& place : cache.take(std::span(away).subspan(begin, count), 0)) {
      const ExpertPlace at{place.expert, place.slot};
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
