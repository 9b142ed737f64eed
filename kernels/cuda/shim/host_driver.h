#pragma once
// Settings of the host's stand-in for the CUDA runtime (host_runtime.h), for tests, and what it has
// counted since the process began. One setting for the whole process; set it while no work is
// queued.
#include <cstdint>

namespace sluice::cuda::host {

/// The order of threads in a block as run_grid() has it (host_grid.h), and of work on different
/// streams: 0 as given, 1 the last first, else random.
void set_seed(uint64_t seed);

/// What a driver may refuse.
struct Refusals {
  bool capture = false;              ///< to record a stream
  bool graphs = false;               ///< to make a graph of what was recorded
  bool batches = false;              ///< many copies in one call
  int64_t pinned_bytes = INT64_MAX;  ///< to page-lock more than this at a time, all together
};
void refuse(const Refusals& refusals);
void refuse_graphs(bool refuses);  ///< that alone

/// How many GPUs there are (1, if nobody says anything else); the calling thread's is the first
/// then.
void set_devices(int count);
/// Whether a host thread that touches device memory ends the process: not in a library that was
/// built with a sanitizer.
bool has_walls() noexcept;

/// After so many more works the GPU is lost, as after an illegal access: works do nothing, and
/// every call says so. INT64_MAX: it is there again, and stays.
void lose_device_after(int64_t works);

/// Timers count a microsecond for each copy and each kernel that is run, instead of the time that
/// passes: rates are exact.
void time_by_work(bool is_on);

/// Compute capability of the GPU that it is: 9.0, if nobody says anything else.
void set_capability(int major, int minor);
/// The same as one number, 90.
int capability();

/// Bytes of device memory, and of page-locked host memory, in use.
int64_t device_bytes_in_use();
int64_t pinned_bytes_in_use();

struct Counts {
  int64_t kernels = 0;                  ///< run
  int64_t graphs = 0;                   ///< launched
  int64_t copies = 0;                   ///< asked for: a call each, a batch is one
  int64_t batched_copies = 0;           ///< those in batches
  int64_t registrations = 0;            ///< of host memory to page-lock
  int64_t largest_registration = 0;     ///< bytes
  int64_t unfaulted_registrations = 0;  ///< whose memory had pages that were never touched
  int64_t spinning_waits = 0;           ///< of a thread that keeps its core while it waits
};
Counts counts();
int64_t graphs_run();  ///< counts().graphs

}  // namespace sluice::cuda::host
