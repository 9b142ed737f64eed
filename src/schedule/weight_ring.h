#pragma once
// Where streamed weights lie in one ring of memory: first in, first out, in parts (some rows of one
// matrix) that are contiguous each. Pure arithmetic: the memory belongs to the engine. Live regions
// never overlap.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace sluice {

class WeightRing {
 public:
  explicit WeightRing(int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  /// Room of `bytes` for the next part of the sublayer with running number `index` (they come in
  /// order), or nothing when it does not fit beside the live ones. Zero bytes always fit.
  std::optional<int64_t> place(int64_t index, int64_t bytes);
  /// Gives back all regions with a running number below `index`.
  void release_before(int64_t index);
  /// And those, the last placed, with this number or a higher one.
  void drop_from(int64_t index);

  int64_t capacity() const noexcept { return capacity_; }

 private:
  struct Region {
    int64_t index;
    int64_t begin;
    int64_t end;
  };
  int64_t capacity_;
  std::deque<Region> live_;
};

/// Parts are at most so large (one row where that is more): small enough that cutting the ring up
/// wastes little, large enough to be read at full speed.
constexpr int64_t kWeightPartBytes = int64_t{32} << 20;
/// Rows of `row_bytes` that make a part: a multiple of `granule` where it holds one.
int64_t weight_part_rows(int64_t row_bytes, int64_t granule) noexcept;

/// A ring in which, whichever sublayer computes, that one and the `ahead` streamed ones after it
/// fit together: the visited ones are a cycle, as passes are. Exactly the largest such sum and, for
/// what the end of the ring may waste, one largest part; any larger ring will do too. `bytes`:
/// streamed bytes of each sublayer; `largest_part`: of all their parts.
int64_t weight_ring_bytes(std::span<const int64_t> bytes, int64_t largest_part, int ahead);

}  // namespace sluice
