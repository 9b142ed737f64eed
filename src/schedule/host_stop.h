#pragma once
// Where parts of weights stop on their way from disk to a device: a ring in host memory that the
// disk fills as far ahead of the link as it has room. Not thread safe.
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "src/schedule/task.h"
#include "src/schedule/weight_ring.h"

namespace sluice {

class HostStop {
 public:
  explicit HostStop(int64_t bytes) : ring_(bytes) {}

  /// Where the next part lies; `waits` gets the copies that must have ended before it is read. It
  /// is at most the ring's bytes (asserted), and emptied_by() follows.
  int64_t place(int64_t bytes, std::vector<TaskId>& waits);
  /// The copy that takes the part placed last out of the ring.
  void emptied_by(TaskId copy) { parts_.emplace_back(next_++, copy); }

 private:
  WeightRing ring_;
  /// Under way, oldest first: number in the ring, the copy that empties it.
  std::deque<std::pair<int64_t, TaskId>> parts_;
  int64_t next_ = 0;
};

}  // namespace sluice
