#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/measure_gpu.h"
#include "tools/gpu.h"

namespace sluice::tools {

std::shared_ptr<Backend> open_gpu(int gpu, int64_t memory_bytes, bool uses_graphs) {
  return std::make_shared<CudaBackend>(gpu, memory_bytes, uses_graphs);
}

policy::Profile measure_with_gpu(const policy::Profile& machine, Backend& backend) {
  return measure_gpu(machine, static_cast<CudaBackend&>(backend).cuda_device(), {});
}

}  // namespace sluice::tools
