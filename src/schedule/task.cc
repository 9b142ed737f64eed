#include "src/schedule/task.h"

namespace sluice {

namespace {
// FNV-1a over 64-bit words.
uint64_t fold(uint64_t hash, int64_t value) noexcept {
  constexpr uint64_t kPrime = 0x100000001b3u;
  constexpr uint64_t kBasis = 0xcbf29ce484222325u;
  return ((hash ^ kBasis) ^ static_cast<uint64_t>(value)) * kPrime;
}
}  // namespace

uint64_t fold_task(uint64_t hash, const Task& task) noexcept {
  for (const int64_t value :
       {task.id, static_cast<int64_t>(task.kind), static_cast<int64_t>(task.lane),
        static_cast<int64_t>(task.step), task.pass, int64_t{task.sublayer},
        int64_t{task.micro_batch}, int64_t{task.part}, int64_t{task.slot}, int64_t{task.host_slot},
        int64_t{task.attention_slot}, int64_t{task.activation_slot}})
    hash = fold(hash, value);
  for (const TaskId wait : task.waits) hash = fold(hash, wait);
  return hash;
}

}  // namespace sluice
