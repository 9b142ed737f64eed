#pragma once
// Read bandwidth of memory, for benchmarks to print beside what they reached.
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/arena.h"

namespace sluice {

/// More than the last caches of machines hold: what is larger and read in turn comes from memory.
constexpr int64_t kBeyondCaches = int64_t{256} << 20;
/// Drops `memory` from the caches, so that what is read next comes from memory, however little
/// there is of it.
void evict_from_caches(std::span<const std::byte> memory) noexcept;

/// A buffer to read again and again. Made before the memory for a model is planned, it counts as
/// taken.
class MemoryProbe {
 public:
  /// Allocates and touches `bytes`. Errors: kResource when there are not so many.
  explicit MemoryProbe(int64_t bytes);
  /// Bytes per second at which `threads` threads together read it; best of a few rounds.
  /// A buffer that the caches could hold is dropped from them between rounds.
  double read_rate(int threads) const;

 private:
  Arena arena_;
  Buffer buffer_;
};

/// Of a buffer made for it.
double probe_memory_read_rate(int64_t bytes, int threads);

}  // namespace sluice
