#pragma once
// Where whoever runs a schedule takes the tasks of a pass from, column by column. A column is asked
// for when some lane that the pass uses has no task left: until then nothing in it could start, so
// that a pass runs as it would if its tasks were there from the start. Not thread safe.
#include <cstdint>
#include <functional>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

class ColumnSource {
 public:
  virtual ~ColumnSource() = default;
  virtual bool has_column() const = 0;
  /// The task that must have ended before the next column can be asked for; kNoTask: none.
  virtual TaskId awaited() const = 0;
  virtual std::vector<Task> next_column() = 0;
  /// Whether tasks of the pass may be on `lane`.
  virtual bool uses(Lane lane) const = 0;
  /// Tasks that need not run if they have not begun, as if they had ended; since the last call.
  virtual std::vector<TaskId> take_dropped() { return {}; }
};

/// The columns of the pass that a generator has begun; each task is folded into `hash`.
class PassColumns : public ColumnSource {
 public:
  /// Where a micro-batch's tokens go, asked when its route has run.
  using Router = std::function<Routed(const AwaitedRoute&)>;
  /// The generator and the hash stay where they are.
  PassColumns(ScheduleGenerator& generator, uint64_t& hash, Router router = {});

  bool has_column() const override { return generator_.has_column(); }
  TaskId awaited() const override;
  std::vector<Task> next_column() override;
  bool uses(Lane lane) const override { return generator_.uses(lane); }
  std::vector<TaskId> take_dropped() override { return generator_.take_dropped(); }

 protected:
  /// Called for each task after it was folded.
  virtual void prepare(Task&) {}

 private:
  ScheduleGenerator& generator_;
  uint64_t& hash_;
  Router router_;
};

/// Tasks that are there already, as one column.
class OneColumn final : public ColumnSource {
 public:
  explicit OneColumn(std::vector<Task> tasks) : tasks_(std::move(tasks)) {}
  bool has_column() const override { return !is_taken_; }
  TaskId awaited() const override { return kNoTask; }
  std::vector<Task> next_column() override {
    is_taken_ = true;
    return std::move(tasks_);
  }
  bool uses(Lane) const override { return true; }

 private:
  std::vector<Task> tasks_;
  bool is_taken_ = false;
};

}  // namespace sluice
