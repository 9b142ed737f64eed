#include "tools/cuda_report.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "src/base/bytes.h"
#include "src/engine/cuda/gpu_direct_engine.h"

namespace sluice::tools {

std::string cuda_report() {
  const std::string built =
      fmt::format("built with CUDA {}.{}", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess)
    return fmt::format("{}; no GPU in use: {}", built, cudaGetErrorString(status));
  std::string text = fmt::format("{}; {} GPUs", built, count);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) == cudaSuccess)
      text += fmt::format("; {}: {} sm_{}{} {}", device, properties.name, properties.major,
                          properties.minor,
                          format_bytes(static_cast<int64_t>(properties.totalGlobalMem)));
  }
  return text + " (--device cuda computes on the first); " +
         GpuDirectEngine::report(GpuDirectEngine::kLibrary);
}

}  // namespace sluice::tools
