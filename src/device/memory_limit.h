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

/// Resident set size of this process now.
int64_t resident_set_bytes();

}  // namespace sluice
