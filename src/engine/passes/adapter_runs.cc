#include "src/engine/passes/adapter_runs.h"

#include <algorithm>
#include <tuple>

namespace sluice {

namespace {
void add_rows(const Sequence& sequence, int64_t first, int64_t rows,
              std::vector<AdapterRun>& runs) {
  const PlacedAdapter* adapter = sequence.adapter.get();
  if (!adapter) return;
  if (!runs.empty() && runs.back().adapter == adapter &&
      runs.back().first + runs.back().rows == first)
    runs.back().rows += rows;
  else
    runs.push_back({adapter, first, rows});
}

std::vector<AdapterRun> by_adapter(std::vector<AdapterRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const AdapterRun& a, const AdapterRun& b) {
    return std::tie(a.adapter->id, a.first) < std::tie(b.adapter->id, b.first);
  });
  return runs;
}
}  // namespace

std::vector<AdapterRun> adapter_runs(const MicroBatch& batch) {
  std::vector<AdapterRun> runs;
  for (const Chunk& chunk : batch.chunks)
    add_rows(*chunk.sequence, chunk.row_begin, chunk.count, runs);
  return by_adapter(std::move(runs));
}

std::vector<AdapterRun> needed_adapter_runs(const MicroBatch& batch) {
  std::vector<AdapterRun> runs;
  for (size_t i = 0; i < batch.needed_chunks.size(); ++i)
    add_rows(*batch.needed_chunks[i]->sequence, static_cast<int64_t>(i), 1, runs);
  return by_adapter(std::move(runs));
}

void low_rank_runs(std::span<const AdapterRun> runs, size_t sublayer, size_t weight, int64_t begin,
                   int64_t rows, std::vector<kernels::LowRankRun>& out) {
  out.clear();
  for (const AdapterRun& run : runs) {
    const int64_t first = std::max(run.first, begin);
    const int64_t end = std::min(run.first + run.rows, begin + rows);
    if (first >= end) continue;
    if (const kernels::LowRank* of = run.adapter->find(sublayer, weight))
      out.push_back({of, first - begin, end - first});
  }
}

}  // namespace sluice
