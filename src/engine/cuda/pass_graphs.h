#pragma once
// Graphs of whole decode passes of a resident model, by what the pass's kernels are launched with:
// the first pass of a kind runs as it is, the second is recorded, later ones are one launch. The
// least recently used go when there are many. One thread.
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cuda/driver.h"

namespace sluice {

class PassGraphs {
 public:
  /// Everything but memory that launches depend on.
  struct Kind {
    int64_t rows = 0;
    /// Items, merges and pages of attention, by group of layers.
    std::vector<std::array<int64_t, 3>> attention;
    /// Where rows have adapters: items, and of each weight the largest rank of what they add to it.
    std::vector<int64_t> adapters = {};
    auto operator<=>(const Kind&) const = default;
  };
  enum class Step : uint8_t {
    kRun,     ///< the pass runs as it is
    kRecord,  ///< what it queues is recorded until finish()
    kReplay   ///< it has been launched as a whole
  };

  /// `is_used` false: passes run as they are.
  PassGraphs(cuda::Stream stream, bool is_used) : stream_(stream), is_used_(is_used) {}

  bool is_used() const noexcept { return is_used_; }
  Step begin(const Kind& kind);
  /// Ends the recording and launches it. False: the driver makes no graph of it, and no other will
  /// be tried; nothing of the pass has run.
  bool finish();
  /// Ends a recording that an error cut short.
  void abandon() noexcept;

  int64_t launches() const noexcept { return launches_; }

 private:
  struct Entry {
    cuda::Graph graph;
    bool is_recorded = false;
    int64_t last_use = 0;
  };
  void drop_oldest();

  cuda::Stream stream_;
  bool is_used_;
  std::map<Kind, Entry> entries_;
  Entry* recorded_ = nullptr;  // that is being recorded
  int64_t uses_ = 0;
  int64_t launches_ = 0;
};

}  // namespace sluice
