#pragma once
// One option for each of several things, so that their bytes keep under a limit and what they cost
// is least (the knapsack problem with classes). Pure; deterministic.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::app {

/// What one thing could be.
struct FormatOption {
  int64_t bytes = 0;
  double damage = 0;  ///< finite
};

/// For each item the index of its option; nothing where the smallest options are over the limit. No
/// item is without options. The choice has the least summed damage that fits where the differences
/// between options are multiples of a number of bytes that goes into the room above the smallest
/// ones at most kMostSteps times; elsewhere it is within items / kMostSteps of the room of it.
/// Between choices of one damage the smaller one. Time: kMostSteps x options.
std::optional<std::vector<size_t>> choose_options(std::span<const std::vector<FormatOption>> items,
                                                  int64_t most_bytes);

constexpr int64_t kMostSteps = 1 << 16;

}  // namespace sluice::app
