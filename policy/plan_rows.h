#pragma once
// The rows of a plan's matrices: who has which home, the parts that are streamed, the experts that
// have slots, and the rings that this takes. Pure.
#include <cstdint>
#include <span>

#include "policy/plan.h"

namespace sluice::policy {

/// Bytes of weights by what they are for, in memory.
struct WeightMemory {
  int64_t resident = 0;  ///< matrices where they are computed, without experts in slots
  int64_t vectors = 0;
  int64_t table = 0;
  int64_t inplace = 0;
  int64_t host = 0;
};

/// Fills in what `plan`, which has its policy, paths and classes, says of weights. `shapes`:
/// shaped_alike() of the model. `is_many`: the block has so many sequences that reading a sublayer
/// takes longer than computing it.
WeightMemory place_weights(const PlanInput& input, std::span<const size_t> shapes, bool is_many,
                           Plan& plan);

/// Of all weights' bytes, vectors apart: the share that every token multiplies, which lies in the
/// nearest memory before experts and tables.
double share_of_every_token(const ModelShape& model);

}  // namespace sluice::policy
