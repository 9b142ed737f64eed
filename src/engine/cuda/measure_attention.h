#pragma once
// Rates of attention on a GPU by the type of KV (measure_gpu.h).
#include "policy/profile.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/measure_gpu.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {

/// Many sequences of single tokens, whose KV is MeasureGpuOptions::rotate_bytes together, and one
/// prompt, with heads that share K and V by fours. Errors: kDevice, kResource.
policy::AttentionRate measure_attention(CudaDevice& device, const MeasureGpuOptions& options,
                                        const KvFormat& format, Stopwatch& stopwatch);

}  // namespace sluice
