#pragma once
// Memory of products whose columns are shared out among blocks: each block leaves its sums, and the
// last to come adds them up in the order of the columns, so that the result does not depend on who
// that was.
#include <cstdint>

#include "kernels/cuda/multiprocessors.h"

namespace sluice::cuda {

/// On the device; products that share it run one after the other.
struct SplitSpace {
  float* sums = nullptr;         ///< a plan's workspace_floats
  uint32_t* counters = nullptr;  ///< split_counters() of zeros, which every product leaves zeros
};
/// Of any product, at most.
int64_t split_counters(const Multiprocessors& processors) noexcept;

}  // namespace sluice::cuda
