#pragma once
// Read bandwidth of memory, for benchmarks to print beside what they reached.
#include <cstdint>

#include "src/base/arena.h"

namespace sluice {

/// A buffer to read again and again. Made before the memory for a model is planned, it counts as
/// taken.
class MemoryProbe {
 public:
  /// Allocates and touches `bytes`. Errors: kResource when there are not so many.
  explicit MemoryProbe(int64_t bytes);
  /// Bytes per second at which `threads` threads together read it; best of a few rounds.
  double read_rate(int threads) const;

 private:
  Arena arena_;
  Buffer buffer_;
};

/// Of a buffer made for it.
double probe_memory_read_rate(int64_t bytes, int threads);

}  // namespace sluice
