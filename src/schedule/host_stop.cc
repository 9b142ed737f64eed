#include "src/schedule/host_stop.h"

#include "src/base/error.h"

namespace sluice {

int64_t HostStop::place(int64_t bytes, std::vector<TaskId>& waits) {
  auto offset = ring_.place(next_, bytes);
  while (!offset) {
    SLUICE_ASSERT(!parts_.empty(), "an empty ring takes any part");
    waits.push_back(parts_.front().second);
    ring_.release_before(parts_.front().first + 1);
    parts_.pop_front();
    offset = ring_.place(next_, bytes);
  }
  return *offset;
}

}  // namespace sluice
