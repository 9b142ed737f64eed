#pragma once
// What a GPU and its link can do, measured with the engine's own kernels: the device's part of a
// profile. About a second on a GPU. Uses the device's memory while nothing else does.
#include "policy/profile.h"
#include "src/engine/cuda/cuda_device.h"

namespace sluice {

struct MeasureGpuOptions {
  int64_t copy_bytes = int64_t{64} << 20;
  int64_t matrix_size = 4096;  ///< rows and columns of the products' weights
  int64_t prompt_rows = 1024;  ///< of the products for prompts
  int64_t context_tokens = 2048;
  int samples = 3;
};

/// `machine` (its host and disks) with `device` measured into it. Errors: kDevice, kResource.
policy::Profile measure_gpu(const policy::Profile& machine, CudaDevice& device,
                            const MeasureGpuOptions& options);

}  // namespace sluice
