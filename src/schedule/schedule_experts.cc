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
    places.push_back(place_of(running_.sublayer, held[slot] + static_cast<int32_t>(layer.resident),
                              static_cast<int32_t>(slot)));
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

ExpertPlace ScheduleGenerator::place_of(int32_t sublayer, int32_t expert, int32_t slot) const {
  const ExpertSlots& slots = *demand_.experts[static_cast<size_t>(sublayer)];
  const ExpertSlot& at = slots.memory[static_cast<size_t>(slot)];
  return {expert, at.slot, at.home == sublayer ? -1 : at.home};
}

// All its matrices, when the slot's last user has ended; what was guessed right is there, or about
// to be, and changes places with what the slot holds.
ScheduleGenerator::LoadedExpert ScheduleGenerator::load_expert(Tasks& out, int32_t micro_batch,
                                                               int32_t expert, int32_t slot) {
  const int32_t sublayer = running_.sublayer;
  const int32_t turn = column().experts.turn_of(expert);
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(sublayer)];
  const auto at = static_cast<size_t>(slot);
  std::vector<TaskId> users;
  if (slots.users[at] != kNoTask) users.push_back(slots.users[at]);
  users.insert(users.end(), slots.sent[at].tasks.begin(), slots.sent[at].tasks.end());
  slots.users[at] = kNoTask;
  slots.sent[at].tasks.clear();
  for (Guess& guess : demand_.guesses) {
    if (guess.sublayer != sublayer || guess.turn != turn) continue;
    std::swap(guess.memory, slots.memory[at]);
    guess.sublayer = guess.turn = -1;
    guess.users = std::move(users);
    ++demand_.counts.right;
    return {place_of(sublayer, expert, slot), std::move(guess.loads), true};
  }
  std::vector<TaskId> loads =
      load_expert_to(out, sublayer, turn, micro_batch, slots.memory[at], users);
  demand_.loads.insert(demand_.loads.end(), loads.begin(), loads.end());
  return {place_of(sublayer, expert, slot), std::move(loads), false};
}

// Into a slot, which is below a device where the layer's are.
std::vector<TaskId> ScheduleGenerator::load_expert_to(Tasks& out, int32_t sublayer, int32_t turn,
                                                      int32_t micro_batch, const ExpertSlot& to,
                                                      const std::vector<TaskId>& waits) {
  const ScheduleSublayer& of = shape_.sublayers[static_cast<size_t>(sublayer)];
  const auto running = pass_ * static_cast<int64_t>(shape_.sublayers.size()) + sublayer;
  std::vector<TaskId> loads;
  for (const int32_t first : of.experts.first_parts) {
    const int32_t part = first + turn;
    if (!of.experts.is_below) {
      loads.push_back(load_part(out, {running, part, 0}, micro_batch, to, waits));
      continue;
    }
    Task& task =
        add(out, TaskKind::kLoadWeights, shape_.paths.weights_from_disk.hops.front().up, sublayer,
            micro_batch, PartLoad{part, 0, to.slot, -1, to.home == sublayer ? -1 : to.home});
    task.bytes = of.parts[static_cast<size_t>(part)].bytes;
    task.waits = waits;
    loads.push_back(task.id);
  }
  return loads;
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
  const ExpertPlace from = place_of(static_cast<int32_t>(index), -1, slot);
  Task& task = add(out, TaskKind::kLoadWeights, shape_.paths.weights_from_host.hops.back().up,
                   static_cast<int32_t>(index), micro_batch,
                   PartLoad{load.part, load.offset, from.slot, -1, from.home});
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

TaskId ScheduleGenerator::compute_experts(Tasks& out, int32_t micro_batch,
                                          std::vector<ExpertPlace> places,
                                          std::vector<TaskId> waits) {
  ComputeWork work;
  work.step = ComputeStep::kSomeExperts;
  work.part_offsets = weights_.offsets[static_cast<size_t>(running_.sublayer)];
  work.experts = std::move(places);
  if (moves_activations(load_of(micro_batch)))
    work.activation_slot = state_of(micro_batch).activation_slot;
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = std::move(waits);
  state_of(micro_batch).compute = task.id;
  return task.id;
}

// Of those that lack a slot as many as may: what was guessed is computed first, as it is there.
void ScheduleGenerator::load_and_compute(Tasks& out, int32_t micro_batch,
                                         std::span<const ExpertCache::Use> away) {
  ExpertSlots& slots = *demand_.experts[static_cast<size_t>(running_.sublayer)];
  const auto resident = static_cast<int32_t>(column().experts.resident);
  std::vector<std::pair<int32_t, LoadedExpert>> loaded;  // with its slot
  for (const ExpertCache::Place& place : slots.cache.take(away, 0))
    loaded.emplace_back(place.slot,
                        load_expert(out, micro_batch, place.expert + resident, place.slot));
  std::stable_partition(loaded.begin(), loaded.end(),
                        [](const auto& one) { return one.second.was_guessed; });
  for (auto& [slot, one] : loaded)
    slots.users[static_cast<size_t>(slot)] =
        compute_experts(out, micro_batch, {one.place}, std::move(one.loads));
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
  const std::vector<ExpertCache::Place> held = slots.cache.take(here, routed.tokens);
  for (const ExpertCache::Place& place : held)
    places.push_back(place_of(running_.sublayer,
                              place.expert + static_cast<int32_t>(layer.resident), place.slot));
  if (!places.empty()) {
    const TaskId task = compute_experts(out, micro_batch, std::move(places), weights_.loads[index]);
    for (const ExpertCache::Place& place : held)
      slots.users[static_cast<size_t>(place.slot)] = task;
  }
  const auto together = static_cast<size_t>(std::max<int64_t>(slots.cache.slots() / 2, 1));
  for (size_t begin = 0; begin < away.size(); begin += together)
    load_and_compute(out, micro_batch,
                     std::span(away).subspan(begin, std::min(together, away.size() - begin)));
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
  demand_.guessed.insert(demand_.guessed.end(), routed.guessed.begin(), routed.guessed.end());
  if (++demand_.awaited < static_cast<int32_t>(running_.loads.size()))
    return add_route(out, demand_.awaited);
  demand_.awaited = -1;
  drop_guesses(running_.sublayer);
  add_guesses(out, micro_batch);
  end_column();
}

}  // namespace sluice
