#pragma once
// Runs the schedule's own task stream against a profile by discrete events: each lane takes its
// tasks in order, a task starts when its lane is free and all it waits for has ended, and takes as
// long as the profile says. Nothing here knows what the tasks are for.
#include <vector>

#include "policy/layer_cost.h"
#include "policy/prediction.h"
#include "src/schedule/schedule.h"

namespace sluice::policy {

/// One pass: what each micro-batch moves and computes.
struct PassWork {
  std::vector<MicroBatchLoad> loads;
  std::vector<BatchWork> work;
  bool is_prefill = false;
  bool more_follow = true;
};

struct SimulatedTask {
  Task task;
  double start_seconds = 0;
  double end_seconds = 0;
};

struct Simulation {
  double seconds = 0;
  std::vector<double> pass_ends;  ///< when each pass's last compute task ended
  std::array<double, kLaneCount> busy_seconds{};
  uint64_t stream_hash = 0;          ///< of the task stream walked (hash_task over all tasks)
  std::vector<SimulatedTask> tasks;  ///< when asked for
};

/// Folds a task's identity (kind, lane, step, pass, sublayer, micro-batch, part, slots, waits; not
/// bytes) into `hash`. The engine folds what it executes the same way. Start from 0.
uint64_t hash_task(uint64_t hash, const Task& task) noexcept;

/// Simulates the passes of one schedule of `shape` in order.
Simulation simulate(const ModelShape& model, const Plan& plan, const Profile& profile,
                    const ScheduleShape& shape, std::span<const PassWork> passes, bool keep_tasks);

/// What the generator needs to know of a plan (ring sizes, parts with upper-bound bytes).
ScheduleShape schedule_shape(const ModelShape& model, const Plan& plan);

/// The passes of one block of `job` under `plan`, cut into micro-batches as the engine cuts them.
/// Long decodes are sampled: `decode_passes` of them, spread over the context's growth; the
/// prediction scales them up.
struct BlockPasses {
  std::vector<PassWork> passes;
  int64_t prefill_passes = 0;
  double decode_scale = 1;  ///< real decode passes for each one listed
};
BlockPasses block_passes(const ModelShape& model, const Plan& plan, DType kv_dtype,
                         const JobShape& job, int64_t decode_passes);

/// Simulates one block of `job`. Errors: none for a plan that fits.
Prediction simulate_block(const ModelShape& model, const Plan& plan, const Profile& profile,
                          DType kv_dtype, const JobShape& job);

}  // namespace sluice::policy
