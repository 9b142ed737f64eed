#include "src/app/gpu.h"
#include "src/base/error.h"

namespace sluice::app {

std::shared_ptr<Backend> open_gpu(int, int64_t, const GpuOptions&) {
  throw Error(ErrorKind::kDevice, "`device` cuda: this build has no CUDA",
              "build it where the CUDA toolkit is (nvcc and cuBLAS; cmake says what it found), or "
              "leave `device` out");
}

policy::Profile measure_with_gpu(const policy::Profile& machine, Backend&) { return machine; }

}  // namespace sluice::app
