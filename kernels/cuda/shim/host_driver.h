#pragma once
// Settings of the host's stand-in for the CUDA runtime (driver.h), for tests. One setting for the
// whole process; set it while no work is queued.
#include <cstdint>

namespace sluice::cuda::host {

/// Draws the order of threads in a block and of work on different streams: 0 rising and as given,
/// 1 falling, else random.
void set_seed(uint64_t seed);
/// Whether a recorded graph is refused at its end, as a driver may.
void refuse_graphs(bool refuses);
/// Bytes of device memory in use; kernels run and graphs launched since the start.
int64_t device_bytes_in_use();
int64_t kernels_run();
int64_t graphs_run();

}  // namespace sluice::cuda::host
