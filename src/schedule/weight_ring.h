#pragma once
// Where streamed sublayers lie in one ring of memory: first in, first out, each contiguous. Pure
// arithmetic: the memory belongs to the engine. Live regions never overlap.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace sluice {

class WeightRing {
 public:
  explicit WeightRing(int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  /// Room of `bytes` for the sublayer with running number `index` (they come in order), or nothing
  /// when it does not fit beside the live ones. Zero bytes always fit.
  std::optional<int64_t> place(int64_t index, int64_t bytes);
  /// Gives back all regions with a running number below `index`.
  void release_before(int64_t index);
  /// Counts running numbers `count` lower from now on.
  void rotate(int64_t count);

  int64_t capacity() const noexcept { return capacity_; }
  bool operator==(const WeightRing&) const = default;

 private:
  struct Region {
    int64_t index;
    int64_t begin;
    int64_t end;
    bool operator==(const Region&) const = default;
  };
  int64_t capacity_;
  std::deque<Region> live_;
};

/// Smallest ring (to 1/64 of its size) in which, with any one sublayer live, the next always fits
/// beside it, when the sublayers are visited cyclically as passes do and each step places as many
/// as fit, at most one round ahead. A larger ring may hold more and yet, cut up differently, lack
/// the room. `bytes`: streamed bytes of each sublayer.
int64_t smallest_ring_bytes(std::span<const int64_t> bytes);

}  // namespace sluice
