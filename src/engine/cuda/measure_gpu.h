#pragma once
// What a GPU and its link can do, measured with the engine's own kernels: the device's part of a
// profile. Kernels are timed by the device's clock as replayed graphs, on random operands that are
// more than its cache holds. Some seconds on a GPU. Uses the device's memory while nothing else
// does.
#include <vector>

#include "policy/profile.h"
#include "src/engine/cuda/cuda_device.h"

namespace sluice {

/// Rows and columns of a product's weights.
struct MatrixSize {
  int64_t n = 0;
  int64_t k = 0;
  bool operator==(const MatrixSize&) const = default;
};

/// Sizes of what is measured.
struct MeasureGpuOptions {
  int64_t link_bytes = int64_t{64} << 20;   ///< of a copy over the link; twice as much is pinned
  int64_t copy_bytes = int64_t{256} << 20;  ///< of a copy on the device
  /// Matrices and KV that take turns are so much together: the largest cache is 126 MiB (B200).
  int64_t rotate_bytes = int64_t{512} << 20;
  /// The first is measured in all types, the last on any budget: one of a 7B model, the largest of
  /// a 70B one, and a projection to few KV heads.
  std::vector<MatrixSize> sizes{{4096, 4096}, {28672, 8192}, {1024, 4096}};
  int64_t prompt_rows = 1024;  ///< of the products for prompts
  int64_t context_tokens = 2048;
  int samples = 3;
  double warm_up_seconds = 0.3;  ///< of work before anything is measured: clocks rise from idle

  /// For the stand-in on the host (a fiber a thread), at a millionth of a GPU's rates.
  static MeasureGpuOptions for_stand_in() {
    MeasureGpuOptions out;
    out.copy_bytes = int64_t{1} << 20;
    out.rotate_bytes = 4096;
    out.sizes = {{64, 64}};
    out.prompt_rows = 72;
    out.context_tokens = 32;
    out.samples = 1;
    out.warm_up_seconds = 0;
    return out;
  }
};

/// `machine` (its host and disks) with `device` measured into it; on a small budget of memory with
/// less of it. Errors: kDevice, kResource.
policy::Profile measure_gpu(const policy::Profile& machine, CudaDevice& device,
                            const MeasureGpuOptions& options);

}  // namespace sluice
