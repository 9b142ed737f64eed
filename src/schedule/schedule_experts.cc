// Columns that ask: a sublayer whose route says, micro-batch by micro-batch, which parts are
// needed. The next micro-batch's route is queued before the parts of the one before, so that the
// device computes it while they load.
#include "src/base/error.h"
#include "src/schedule/schedule.h"

namespace sluice {

std::optional<AwaitedRoute> ScheduleGenerator::awaited() const noexcept {
  if (demand_.awaited < 0) return std::nullopt;
  return AwaitedRoute{running_.state[static_cast<size_t>(demand_.awaited)].compute,
                      running_.sublayer, demand_.awaited};
}

void ScheduleGenerator::begin_routes(Tasks& out) {
  const auto count = static_cast<int64_t>(shape_.sublayers.size());
  demand_.parts.assign(column().on_demand.size(), {});
  demand_.ring.release_before(pass_ * count + running_.sublayer);
  demand_.awaited = 0;
  add_route(out, 0);
  if (running_.loads.size() > 1) add_route(out, 1);
}

void ScheduleGenerator::add_route(Tasks& out, int32_t micro_batch) {
  load_share(out, micro_batch);
  load_activations(out, running_.sublayer, micro_batch);
  compute(out, micro_batch);
}

// Each part once a column: a later micro-batch that needs it too waits for the same load.
void ScheduleGenerator::load_demanded(Tasks& out, int32_t micro_batch,
                                      std::span<const int32_t> demanded) {
  const auto running =
      pass_ * static_cast<int64_t>(shape_.sublayers.size()) + int64_t{running_.sublayer};
  const auto fixed = static_cast<int32_t>(column().parts.size());
  for (const int32_t index : demanded) {
    DemandedLoad& load = demand_.parts[static_cast<size_t>(index)];
    if (load.task != kNoTask) continue;
    const SchedulePart& part = column().on_demand[static_cast<size_t>(index)];
    const auto offset = demand_.ring.place(running, part.bytes);
    SLUICE_ASSERT(offset, "the plan sizes the ring of what is demanded");
    load = {load_part(out, {running, fixed + index, *offset}, part, micro_batch), *offset};
  }
}

void ScheduleGenerator::add_after_route(Tasks& out, int32_t micro_batch,
                                        std::span<const int32_t> demanded) {
  load_demanded(out, micro_batch, demanded);
  MicroBatchState& state = state_of(micro_batch);
  const auto index = static_cast<size_t>(running_.sublayer);
  const auto fixed = static_cast<int32_t>(column().parts.size());
  ComputeWork work;
  work.step = ComputeStep::kAfterRoute;
  work.part_offsets = weights_.offsets[index];
  if (moves_activations(load_of(micro_batch))) work.activation_slot = state.activation_slot;
  std::vector<TaskId> waits = weights_.loads[index];
  for (const int32_t part : demanded) {
    const DemandedLoad& load = demand_.parts[static_cast<size_t>(part)];
    work.demanded.push_back({fixed + part, load.offset});
    waits.push_back(load.task);
  }
  Task& task = add(out, TaskKind::kCompute, shape_.paths.compute, running_.sublayer, micro_batch,
                   std::move(work));
  task.waits = std::move(waits);
  state.compute = task.id;
  store_activations(out, micro_batch);
  const auto count = static_cast<int32_t>(running_.loads.size());
  if (micro_batch + 2 < count) add_route(out, micro_batch + 2);
  prefetch(out, micro_batch);
  if (++demand_.awaited < count) return;
  demand_.awaited = -1;
  end_column();
}

}  // namespace sluice
