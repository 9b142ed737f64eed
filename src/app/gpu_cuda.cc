#include "src/app/gpu.h"
#include "src/base/bytes.h"
#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/measure_gpu.h"

namespace sluice::app {

std::shared_ptr<Backend> open_gpu(int gpu, int64_t memory_bytes, const GpuOptions& options) {
  auto backend = std::make_shared<CudaBackend>(gpu, memory_bytes, options.uses_graphs);
  if (options.reads_disk) {
    io::FileEngineOptions reading = GpuDirectEngine::default_options();
    reading.log = reading.warn = options.tell;
    backend->read_with(std::make_unique<GpuDirectEngine>(gpu, GpuDirectEngine::kLibrary, reading));
  }
  return backend;
}

policy::Profile measure_with_gpu(const policy::Profile& machine, Backend& backend) {
#ifdef SLUICE_CUDA_ON_HOST
  const MeasureGpuOptions options = MeasureGpuOptions::for_stand_in();
#else
  const MeasureGpuOptions options;
#endif
  return measure_gpu(machine, static_cast<CudaBackend&>(backend).cuda_device(), options);
}

}  // namespace sluice::app
