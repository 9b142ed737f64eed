// Guesses of what the next layer of a mixture will be asked for. They load while this layer's
// experts are computed and the next one attends, when the disk has nothing else to do: behind what
// this layer is asked for, one at a time, so that a wrong one is in nobody's way for long. What the
// cache holds and who goes does not depend on them: a right guess is where the expert was going
// to be loaded, a wrong one is dropped.
#include <algorithm>

#include "src/base/error.h"
#include "src/schedule/schedule.h"

namespace sluice {

int32_t guessed_after(const std::vector<ScheduleSublayer>& sublayers, int32_t sublayer) noexcept {
  for (auto next = static_cast<size_t>(sublayer) + 1; next < sublayers.size(); ++next)
    if (sublayers[next].experts.experts > 0)
      return sublayers[next].experts.guess_home >= 0 ? static_cast<int32_t>(next) : -1;
  return -1;
}

// State that comes from disk would wait behind guesses.
bool ScheduleGenerator::may_guess() const noexcept {
  return std::none_of(running_.loads.begin(), running_.loads.end(), [](const auto& load) {
    const auto comes = [](const StateBytes& bytes) { return bytes.load > 0; };
    return load.activation_bytes > 0 || std::any_of(load.state.begin(), load.state.end(), comes) ||
           std::any_of(load.shared.begin(), load.shared.end(), comes);
  });
}

// Those of a sublayer that all have routed in and nobody asked for.
void ScheduleGenerator::drop_guesses(int32_t sublayer) {
  for (Guess& guess : demand_.guesses) {
    if (guess.sublayer != sublayer) continue;
    demand_.dropped.insert(demand_.dropped.end(), guess.loads.begin(), guess.loads.end());
    guess.users = std::move(guess.loads);
    guess.loads.clear();
    guess.sublayer = guess.turn = -1;
  }
}

void ScheduleGenerator::add_guesses(Tasks& out, int32_t micro_batch) {
  const std::vector<int32_t> guessed = std::exchange(demand_.guessed, {});
  std::vector<TaskId> ahead = std::exchange(demand_.loads, {});  // of the one that loads before
  const int32_t next = guessed_after(shape_.sublayers, running_.sublayer);
  if (guessed.empty() || next < 0 || !may_guess()) return;
  const ScheduleExperts& layer = shape_.sublayers[static_cast<size_t>(next)].experts;
  const ExpertCache& cache = demand_.experts[static_cast<size_t>(next)]->cache;
  // The other half of the room still holds what this layer has computed with.
  size_t left = (demand_.guesses.size() + 1) / 2;
  for (const int32_t expert : guessed) {
    if (layer.is_resident(expert)) continue;
    const int32_t turn = layer.turn_of(expert);
    if (cache.slot_of(turn) >= 0) continue;
    Guess* free = nullptr;
    bool is_there = false;
    for (Guess& guess : demand_.guesses) {
      is_there = is_there || (guess.sublayer == next && guess.turn == turn);
      const auto newest = [](const Guess& one) {
        return one.users.empty() ? kNoTask : *std::max_element(one.users.begin(), one.users.end());
      };
      if (guess.sublayer < 0 && (!free || newest(guess) < newest(*free))) free = &guess;
    }
    if (is_there) continue;
    if (!free || left-- == 0) return;
    std::vector<TaskId> waits = std::exchange(free->users, {});
    waits.insert(waits.end(), ahead.begin(), ahead.end());
    free->sublayer = next;
    free->turn = turn;
    free->loads = load_expert_to(out, next, turn, micro_batch, free->memory, waits);
    ahead = free->loads;
    ++demand_.counts.guessed;
  }
}

ExpertMemory ScheduleGenerator::expert_memory() const {
  ExpertMemory out;
  for (const auto& slots : demand_.experts)
    out.slots.push_back(slots ? slots->memory : std::vector<ExpertSlot>{});
  for (const Guess& guess : demand_.guesses) out.guesses.push_back(guess.memory);
  return out;
}

void ScheduleGenerator::set_expert_memory(const ExpertMemory& memory) {
  if (memory.slots.empty()) return;
  SLUICE_ASSERT(memory.slots.size() == demand_.experts.size() &&
                    memory.guesses.size() == demand_.guesses.size(),
                "a generator of the same plan");
  for (size_t i = 0; i < memory.slots.size(); ++i)
    if (demand_.experts[i]) demand_.experts[i]->memory = memory.slots[i];
  for (size_t i = 0; i < memory.guesses.size(); ++i) demand_.guesses[i].memory = memory.guesses[i];
}

}  // namespace sluice
