#pragma once
// Measures this machine with the kernels and the file engine's own request sizes and writes down a
// policy::Profile: what the cost model and the simulator compute with. Takes the cores for itself,
// and notices when it does not have them; never more memory than the process's limit leaves; one
// call at a time.
#include <functional>
#include <stop_token>
#include <string>

#include "policy/profile.h"

namespace sluice {

/// What is measured, and how long.
struct MeasureOptions {
  std::string offload_dir;  ///< folder of the disk to measure; empty: the temporary folder
  int threads = 0;          ///< 0: all the process may use
  bool quick = false;       ///< about ten seconds rather than a minute: fewer sizes and samples
  const policy::Profile* only_disk_of = nullptr;  ///< measures the disk alone, the rest from here
  int64_t disk_bytes = 0;         ///< of the file that is written and read; 0: chosen
  int64_t memory_bytes = 0;       ///< that everything together may take; 0: a share of what is free
  int64_t most_rows = INT64_MAX;  ///< of products: no more are tried
  std::stop_token cancel;         ///< looked at between samples
  std::function<void(std::string_view what)> progress;  ///< before each part; may be empty
};

/// Errors: kFile (folder), kResource (space, memory), kCancelled.
policy::Profile measure_profile(const MeasureOptions& options);

/// A CPU's profile as that of an emulated device: the same cores compute at both ends of a link
/// with the given rates, the device with at most `flops` operations a second and the host with at
/// most `host_flops` in products (0 of any: no limit).
policy::Profile emulated_profile(const policy::Profile& cpu, int64_t device_bytes, double to_device,
                                 double to_host, double latency_seconds, double flops,
                                 double host_flops = 0);

}  // namespace sluice
