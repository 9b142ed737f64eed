#pragma once
// Splits a count over a few short-lived threads: for work of milliseconds (converting or making one
// piece of a tensor). Not for kernels; those have their own pool.
#include <cstdint>
#include <functional>

namespace sluice::io {

/// Calls work(begin, end) for ranges that cover [0, count) once, from up to `threads` threads (0:
/// all processors), the caller's among them. A range is at least `smallest_range` long, unless it
/// is all. Returns when all are done; rethrows one of their exceptions.
void parallel_ranges(int threads, int64_t count, int64_t smallest_range,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace sluice::io
