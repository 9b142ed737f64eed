#include "src/schedule/task.h"

namespace sluice {

namespace {
// FNV-1a over 64-bit words.
uint64_t fold(uint64_t hash, int64_t value) noexcept {
  constexpr uint64_t kPrime = 0x100000001b3u;
  constexpr uint64_t kBasis = 0xcbf29ce484222325u;
  return ((hash ^ kBasis) ^ static_cast<uint64_t>(value)) * kPrime;
}

// What a hash says of a task's work; what a kind has not is as it was when every task had it all.
struct WorkWords {
  int64_t step = 0;
  int64_t part = 0;
  int64_t slot = -1;
  int64_t host_slot = -1;
  int64_t attention_slot = -1;
  int64_t activation_slot = -1;
  int64_t home = -1;  // of a slot; it counts where it is another's
};
WorkWords words_of(const ComputeWork& work) noexcept {
  return {static_cast<int64_t>(work.step),
          0,
          work.kv_slot,
          work.host_kv_slot,
          work.attention_slot,
          work.activation_slot};
}
WorkWords words_of(const PartLoad& work) noexcept {
  return {.part = work.part, .slot = work.slot, .home = work.home};
}
WorkWords words_of(const StateMove& work) noexcept {
  return {.slot = work.slot, .host_slot = work.host_slot};
}
WorkWords words_of(const AttentionMove& work) noexcept { return {.attention_slot = work.slot}; }
}  // namespace

uint64_t fold_task(uint64_t hash, const Task& task) noexcept {
  const WorkWords work = std::visit([](const auto& one) { return words_of(one); }, task.work);
  for (const int64_t value :
       {task.id, static_cast<int64_t>(task.kind), static_cast<int64_t>(task.lane), work.step,
        task.pass, int64_t{task.sublayer}, int64_t{task.micro_batch}, work.part, work.slot,
        work.host_slot, work.attention_slot, work.activation_slot})
    hash = fold(hash, value);
  if (work.home >= 0) hash = fold(hash, work.home);
  if (const auto* compute = std::get_if<ComputeWork>(&task.work))
    for (const ExpertPlace& place : compute->experts) {
      hash = fold(fold(hash, place.expert), place.slot);
      if (place.home >= 0) hash = fold(hash, place.home);
    }
  for (const TaskId wait : task.waits) hash = fold(hash, wait);
  return hash;
}

}  // namespace sluice
