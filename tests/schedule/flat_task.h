#pragma once
// What a task says, whatever its kind, and the columns of a pass in a row: for tests that look at
// streams as a whole.
#include <cstdint>
#include <utility>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

/// What a kind has not is as it is by default.
struct FlatTask {
  ComputeStep step = ComputeStep::kWhole;
  int32_t part = 0;
  int64_t offset = 0;
  int64_t host_offset = -1;
  int32_t slot = -1;
  int32_t host_slot = -1;
  int32_t attention_slot = -1;
  int32_t activation_slot = -1;
  std::vector<int64_t> part_offsets;
};

inline FlatTask flat(const Task& task) {
  FlatTask out;
  if (const auto* load = std::get_if<PartLoad>(&task.work)) {
    out.part = load->part;
    out.offset = load->offset;
    out.host_offset = load->host_offset;
  } else if (const auto* move = std::get_if<StateMove>(&task.work)) {
    out.slot = move->slot;
    out.host_slot = move->host_slot;
  } else if (const auto* exchange = std::get_if<AttentionMove>(&task.work)) {
    out.attention_slot = exchange->slot;
  } else {
    const ComputeWork& work = task.compute();
    out.step = work.step;
    out.slot = work.kv_slot;
    out.host_slot = work.host_kv_slot;
    out.attention_slot = work.attention_slot;
    out.activation_slot = work.activation_slot;
    out.part_offsets = work.part_offsets;
  }
  return out;
}

/// All columns of one more pass of a shape without routes.
inline std::vector<Task> whole_pass(ScheduleGenerator& generator,
                                    std::vector<MicroBatchLoad> micro_batches, bool more_follow) {
  std::vector<Task> out;
  generator.begin_pass(std::move(micro_batches), more_follow);
  while (generator.has_column())
    for (Task& task : generator.next_column()) out.push_back(std::move(task));
  return out;
}

}  // namespace sluice
