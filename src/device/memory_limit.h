#pragma once
// What memory this process may use and uses: cgroup limits (v1 and v2) and the machine's own,
// resident set size.
#include <cstdint>
#include <string>

namespace sluice {

struct MemoryLimit {
  int64_t total_bytes = 0;      ///< the smaller of the machine's memory and the cgroup's limit
  int64_t available_bytes = 0;  ///< of that, what is free or can be freed now
  std::string source;           ///< "machine", "cgroup v1", "cgroup v2"
};

/// Reads /proc and /sys; what can't be read counts as no limit.
MemoryLimit memory_limit();

/// What gives this machine memory and takes it away while it runs, as virtual machines have it: the
/// driver's name ("virtio_balloon"), or empty. With one, what is available now may be less than
/// what a program that takes it would be given, or more. `sysfs`: where the kernel shows its
/// devices.
std::string memory_driver(const std::string& sysfs = "/sys");

/// Resident set size of this process now.
int64_t resident_set_bytes();

}  // namespace sluice
