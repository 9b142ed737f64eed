#pragma once
// What a build with CUDA can do on a GPU, and what one without says instead: a program links one of
// the two sources.
#include <functional>
#include <memory>
#include <string_view>

#include "policy/profile.h"
#include "src/engine/runners/backend.h"

namespace sluice::app {

/// How the GPU is used.
struct GpuOptions {
  bool uses_graphs = true;  ///< as CudaBackend
  bool reads_disk = false;  ///< weights come from disk without host memory between
  std::function<void(std::string_view)> tell;  ///< a line at a time; may be empty
};

/// GPU number `gpu` with `memory_bytes` of its memory (0: what is free). Errors: kDevice, with what
/// is missing; kResource.
std::shared_ptr<Backend> open_gpu(int gpu, int64_t memory_bytes, const GpuOptions& options = {});
/// `machine` with the GPU of `backend` (from open_gpu) measured into it.
policy::Profile measure_with_gpu(const policy::Profile& machine, Backend& backend);

}  // namespace sluice::app
