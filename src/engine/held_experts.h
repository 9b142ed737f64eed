#pragma once
// Which experts are in slots between the runs of an engine, where a plan gives them slots: a
// schedule's caches live as long as a run, their memory as long as the engine, and a file of them
// longer: the next engine of the model begins with those that were worth most. One thread at a
// time.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/stores/weight_store.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Experts that passes asked for one by one, of all layers.
struct ExpertCounts {
  int64_t slots = 0;     ///< 0: no layer has any
  int64_t resident = 0;  ///< beside slots
  int64_t experts = 0;
  int64_t asked = 0;  ///< by micro-batches, each once
  int64_t found = 0;  ///< of these, resident or in a slot
  GuessCounts guesses;
};

class HeldExperts {
 public:
  /// `file`: EngineOptions::experts_file. What it says of layers that are as they were then is
  /// taken; one that can't be read or written is told to `log`.
  HeldExperts(const ScheduleShape& shape, std::string file,
              std::function<void(std::string_view)> log);

  /// What the slots are to hold when the engine begins.
  WeightStore::HeldLists held() const;
  /// Tells the schedule of a new run what is in the slots. After a run that failed nobody knows:
  /// then `weights` loads what the engine began with. Errors: kFile, kCancelled.
  void begin_run(ScheduleGenerator& schedule, WeightStore& weights, const std::stop_token& cancel);
  /// A pass has ended.
  void count(const ScheduleGenerator& schedule);
  /// The run has ended, and all that it began.
  void end_run(const ScheduleGenerator& schedule);

  const ExpertCounts& counts() const noexcept { return counts_; }

 private:
  void read_file();
  void write_file() const;

  std::vector<ScheduleExperts> layers_;             // [sublayer]
  std::vector<std::optional<ExpertCache>> first_;   // [sublayer] as they are loaded, by turn
  std::vector<std::optional<ExpertCache>> caches_;  // since the last run
  ExpertMemory memory_;                             // likewise; empty: as they were loaded
  ExpertCounts counts_;
  GuessCounts before_;  // this run
  bool is_running_ = false;
  std::string file_;
  std::function<void(std::string_view)> log_;
};

}  // namespace sluice
