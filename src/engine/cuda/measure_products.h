#pragma once
// Rates of products on a GPU, as the engine makes them: every weight format, few rows and many,
// several sizes of W (measure_gpu.h).
#include <vector>

#include "policy/profile.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/measure_gpu.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {

/// Rows of Processor::matmul. Sizes that the device's budget has no room for are left out, but for
/// the smallest. Errors: kDevice, kResource.
std::vector<policy::MatmulRate> measure_products(CudaDevice& device,
                                                 const MeasureGpuOptions& options,
                                                 Stopwatch& stopwatch);

}  // namespace sluice
