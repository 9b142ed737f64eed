#pragma once
// Runs the schedule's own task stream against a profile by discrete events
// (policy/lane_simulator.h): what a model's tasks take there.
#include <span>

#include "policy/lane_simulator.h"
#include "policy/pass_model.h"
#include "policy/prediction.h"
#include "src/schedule/schedule.h"

namespace sluice::policy {

/// Simulates the passes of one schedule of `shape` in order; the tasks of a pass are there once the
/// last compute task of the one before has ended, as in the engine. Transfers of a lane follow each
/// other at the lane's rate. The disk's latency counts where the lane stood idle, for every load
/// of KV, and once for each half of the ring (ring_waits()); the link's for every copy. Both
/// directions of the link, and reading and writing the disk, slow each other down while they last.
/// What moves through the host's memory beside a device gets no more of it together than it gives.
Simulation simulate(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const ScheduleShape& shape, std::span<const PassWork> passes,
                    bool keep_tasks);

/// Simulates one block of `job`. Errors: none for a plan that fits.
Prediction simulate_block(const ModelShape& model, const Plan& plan, const Profile& profile,
                          KvFormat kv_dtype, const JobShape& job);

}  // namespace sluice::policy
