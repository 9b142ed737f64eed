#pragma once
// Which rows of a micro-batch go through which adapter: neighbours together, and one adapter's runs
// one behind the other, so that its matrices are read from the cache.
#include <span>
#include <vector>

#include "src/engine/passes/pass_plan.h"

namespace sluice {

/// Rows [first, first + rows), all of sequences with that adapter.
struct AdapterRun {
  const PlacedAdapter* adapter = nullptr;
  int64_t first = 0;
  int64_t rows = 0;

  bool operator==(const AdapterRun&) const = default;
};

/// Of all rows; of those that need logits, counted among themselves.
std::vector<AdapterRun> adapter_runs(const MicroBatch& batch);
std::vector<AdapterRun> needed_adapter_runs(const MicroBatch& batch);

/// What the runs add to one weight, of those that lie in rows [begin, begin + rows), counted from
/// there. `out` is overwritten.
void low_rank_runs(std::span<const AdapterRun> runs, size_t sublayer, size_t weight, int64_t begin,
                   int64_t rows, std::vector<kernels::LowRankRun>& out);

}  // namespace sluice
