#include "src/schedule/column_source.h"

#include "src/base/error.h"

namespace sluice {

PassColumns::PassColumns(ScheduleGenerator& generator, uint64_t& hash, Router router)
    : generator_(generator), hash_(hash), router_(std::move(router)) {}

TaskId PassColumns::awaited() const {
  const auto route = generator_.awaited();
  return route ? route->task : kNoTask;
}

std::vector<Task> PassColumns::next_column() {
  Routed routed;
  if (const auto route = generator_.awaited()) {
    SLUICE_ASSERT(router_, "a sublayer with a route needs a router");
    routed = router_(*route);
  }
  std::vector<Task> tasks = generator_.next_column(routed);
  for (Task& task : tasks) {
    hash_ = fold_task(hash_, task);
    prepare(task);
  }
  return tasks;
}

}  // namespace sluice
