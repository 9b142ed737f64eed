#include "src/engine/cuda/pass_graphs.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace sluice {

namespace {
constexpr size_t kMostGraphs = 128;  // a few hundred launches each: some 100 KB of the driver's
}

PassGraphs::Step PassGraphs::begin(const Kind& kind) {
  if (!is_used_) return Step::kRun;
  const auto [found, is_new] = entries_.try_emplace(kind);
  Entry& entry = found->second;
  entry.last_use = ++uses_;
  if (is_new) {
    drop_oldest();
    return Step::kRun;
  }
  if (entry.is_recorded) {
    entry.graph.launch(stream_);
    ++launches_;
    return Step::kReplay;
  }
  try {
    cuda::Graph::begin(stream_);
  } catch (const Error&) {
    is_used_ = false;
    return Step::kRun;
  }
  recorded_ = &entry;
  return Step::kRecord;
}

bool PassGraphs::finish() {
  Entry& entry = *std::exchange(recorded_, nullptr);
  try {
    entry.graph = cuda::Graph::end(stream_);
  } catch (const Error&) {
    is_used_ = false;
    entries_.clear();
    return false;
  }
  entry.is_recorded = true;
  entry.graph.launch(stream_);
  ++launches_;
  return true;
}

void PassGraphs::abandon() noexcept {
  if (!std::exchange(recorded_, nullptr)) return;
  cuda::Graph::abandon(stream_);
}

void PassGraphs::drop_oldest() {
  if (entries_.size() <= kMostGraphs) return;
  entries_.erase(std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
}

}  // namespace sluice
