#pragma once
// What a plan is told of weights that another tool has packed: how many bytes are read for rows on
// disk, and how fast these become what kernels multiply.
#include "policy/plan.h"
#include "src/model/bound_model.h"

namespace sluice {

/// Whether weights that do not fit into memory can be read from the checkpoint as it lies.
bool streams_as_it_lies(const BoundModel& model);

/// Sets what `input` says of packed weights, where `threads` compute; nothing of a model that has
/// none. Where they can't stream there is no disk. Repacking is timed, which takes milliseconds.
/// The model outlives the input. Errors: kFile when its scales can't be read.
void set_packed_weights(const BoundModel& model, int threads, policy::PlanInput& input);

}  // namespace sluice
