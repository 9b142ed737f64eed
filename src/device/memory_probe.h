#pragma once
// Read bandwidth of memory, for benchmarks to print beside what they reached.
#include <cstdint>

namespace sluice {

/// Bytes per second at which `threads` threads together read a buffer of `bytes`; best of a few
/// rounds. Allocates and touches the buffer first. Errors: std::bad_alloc.
double probe_memory_read_rate(int64_t bytes, int threads);

}  // namespace sluice
