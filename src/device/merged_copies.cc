#include "src/device/merged_copies.h"

#include <algorithm>
#include <functional>

namespace sluice {

std::vector<RangeCopy> merge_neighbours(std::vector<RangeCopy> copies) {
  std::sort(copies.begin(), copies.end(), [](const RangeCopy& a, const RangeCopy& b) {
    return std::less<std::byte*>()(a.to, b.to);
  });
  std::vector<RangeCopy> merged;
  for (const RangeCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    if (!merged.empty() && merged.back().to + merged.back().bytes == copy.to &&
        merged.back().from + merged.back().bytes == copy.from)
      merged.back().bytes += copy.bytes;
    else
      merged.push_back(copy);
  }
  return merged;
}

}  // namespace sluice
