#include <cstdio>

#include "src/base/bytes.h"
#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/measure_gpu.h"
#include "tools/gpu.h"

namespace sluice::tools {

std::shared_ptr<Backend> open_gpu(int gpu, int64_t memory_bytes, const GpuOptions& options) {
  auto backend = std::make_shared<CudaBackend>(gpu, memory_bytes, options.uses_graphs);
  if (options.reads_disk) {
    io::FileEngineOptions reading = GpuDirectEngine::default_options();
    reading.log = [](std::string_view line) {
      std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
    };
    reading.warn = reading.log;
    backend->read_with(std::make_unique<GpuDirectEngine>(gpu, GpuDirectEngine::kLibrary, reading));
  }
  return backend;
}

policy::Profile measure_with_gpu(const policy::Profile& machine, Backend& backend) {
  MeasureGpuOptions options;
#ifdef SLUICE_CUDA_ON_HOST  // a fiber a thread: a millionth of a GPU's rates
  options.copy_bytes = kMiB;
  options.rotate_bytes = 4 * kKiB;
  options.sizes = {{64, 64}};
  options.prompt_rows = 72;
  options.context_tokens = 32;
  options.samples = 1;
  options.warm_up_seconds = 0;
#endif
  return measure_gpu(machine, static_cast<CudaBackend&>(backend).cuda_device(), options);
}

}  // namespace sluice::tools
