#pragma once
// Which experts are in slots between the runs of an engine, where a plan gives them slots: a
// schedule's caches live as long as a run, their memory as long as the engine. One thread at a
// time.
#include <optional>
#include <vector>

#include "src/engine/stores/weight_store.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Experts that passes asked for one by one, of all layers.
struct ExpertCounts {
  int64_t slots = 0;  ///< 0: no layer has any
  int64_t experts = 0;
  int64_t asked = 0;  ///< by micro-batches, each once
  int64_t found = 0;  ///< of these, in a slot
};

class HeldExperts {
 public:
  explicit HeldExperts(const ScheduleShape& shape);

  /// Tells the schedule of a new run what is in the slots. After a run that failed nobody knows:
  /// then `weights` loads what the engine began with. Errors: kFile, kCancelled.
  void begin_run(ScheduleGenerator& schedule, WeightStore& weights, const std::stop_token& cancel);
  /// A pass has ended.
  void count(const ScheduleGenerator& schedule);
  /// The run has ended, and all that it began.
  void end_run(const ScheduleGenerator& schedule);

  const ExpertCounts& counts() const noexcept { return counts_; }

 private:
  std::vector<std::optional<ExpertCache>> first_;   // [sublayer] as they are loaded
  std::vector<std::optional<ExpertCache>> caches_;  // since the last run
  ExpertCounts counts_;
  bool is_running_ = false;
};

}  // namespace sluice
