#pragma once
// Runs the schedule's own task stream against a profile by discrete events
// (policy/lane_simulator.h): what a model's tasks take there, and the passes of a block.
#include <span>
#include <vector>

#include "policy/lane_simulator.h"
#include "policy/layer_cost.h"
#include "policy/prediction.h"
#include "src/schedule/schedule.h"

namespace sluice::policy {

/// One pass: what each micro-batch moves and computes. Of a plan with several classes the weights
/// that load ahead of the next pass are those of its class.
struct PassWork {
  std::vector<MicroBatchLoad> loads;
  std::vector<BatchWork> work;
  size_t pass_class = 0;  ///< by its tokens
  bool is_prefill = false;
  bool more_follow = true;
};

/// Simulates the passes of one schedule of `shape` in order; the tasks of a pass are there once the
/// last compute task of the one before has ended, as in the engine. Transfers of a lane follow each
/// other at the lane's rate. The disk's latency counts where the lane stood idle, for every load
/// of KV, and once for each half of the ring (ring_waits()); the link's for every copy. Both
/// directions of the link, and reading and writing the disk, slow each other down while they last.
/// What moves through the host's memory beside a device gets no more of it together than it gives.
Simulation simulate(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const ScheduleShape& shape, std::span<const PassWork> passes,
                    bool keep_tasks);

/// The passes of one block of `job` under `plan`, cut into micro-batches as the engine cuts them.
/// Long prefills and decodes are sampled: so many passes of each, spread evenly; the prediction
/// scales them up.
struct BlockPasses {
  std::vector<PassWork> passes;  ///< prefill, then decode
  size_t prefill_passes = 0;     ///< of `passes`
  double prefill_scale = 1;      ///< real passes for each one listed
  double decode_scale = 1;
  int64_t sequences = 0;
};
BlockPasses block_passes(const ModelShape& model, const Plan& plan, KvFormat kv_dtype,
                         const JobShape& job, int64_t most_prefill, int64_t most_decode);

/// Simulates one block of `job`. Errors: none for a plan that fits.
Prediction simulate_block(const ModelShape& model, const Plan& plan, const Profile& profile,
                          KvFormat kv_dtype, const JobShape& job);

}  // namespace sluice::policy
