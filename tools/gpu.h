#pragma once
// What a build with CUDA can do on a GPU, and what one without says instead.
#include <memory>

#include "policy/profile.h"
#include "src/engine/backend.h"

namespace sluice::tools {

struct GpuOptions {
  bool uses_graphs = true;  ///< as CudaBackend
  bool reads_disk = false;  ///< weights come from disk without host memory between
};

/// GPU number `gpu` with `memory_bytes` of its memory (0: what is free). Errors: kDevice, with what
/// is missing; kResource.
std::shared_ptr<Backend> open_gpu(int gpu, int64_t memory_bytes, const GpuOptions& options = {});
/// `machine` with the GPU of `backend` (from open_gpu) measured into it.
policy::Profile measure_with_gpu(const policy::Profile& machine, Backend& backend);

}  // namespace sluice::tools
