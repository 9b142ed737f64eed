#pragma once
// Copies between two memories, joined where they lie side by side: each costs microseconds of the
// driver's, however little it moves.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

/// One copy.
struct RangeCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
  bool operator==(const RangeCopy&) const = default;
};

/// The same bytes in as few copies as can be, by rising `to`; none of no bytes. What they write
/// does not overlap.
std::vector<RangeCopy> merge_neighbours(std::vector<RangeCopy> copies);

}  // namespace sluice
