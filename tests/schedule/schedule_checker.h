#pragma once
// Checks for streams of tasks: random shapes and passes, the order that lanes and waits impose (by
// transitive closure), and a discrete simulation in which every task takes a random time. Used by
// the schedule's property tests.
#include <cstdint>
#include <random>
#include <vector>

#include "src/schedule/schedule.h"
#include "tests/schedule/flat_task.h"

namespace sluice {

struct Stream {
  ScheduleShape shape;
  std::vector<std::vector<MicroBatchLoad>> passes;
  std::vector<bool> more_follow;
  std::vector<Task> tasks;            ///< of all passes; index == id
  std::vector<size_t> first_of_pass;  ///< index of each pass's first task
};

/// weight_ring_bytes of the shape.
int64_t ring_for(const ScheduleShape& shape, int ahead);
/// A shape with 1..9 sublayers, some streamed in 1..4 parts, some attending, and a ring that looks
/// at least one sublayer ahead (or, with `small_ring`, just holds each); 1..4 passes of 1..5
/// micro-batches with random loads.
Stream random_stream(std::mt19937& random, bool small_ring);
/// The same with a device: parts from disk and from host memory, KV and activations on all tiers,
/// attention on the host for some micro-batches (then for all that have KV below the device).
Stream random_device_stream(std::mt19937& random);
/// Gives some layers to a second group, whose state moves other bytes.
void split_groups(Stream& stream, std::mt19937& random);
/// Lets some attending layers read what an earlier one of their group keeps.
void share_state(Stream& stream, std::mt19937& random);
/// Generates the stream's tasks from its shape and passes.
void generate(Stream& stream);

/// Start and end of each task when lanes take their own tasks in order (a transfer lane may have
/// several under way; the compute lane one) and each task takes a random time. Empty when the lanes
/// block each other.
struct Times {
  std::vector<double> start;
  std::vector<double> end;
};
Times simulate(const std::vector<Task>& tasks, std::mt19937& random);

/// What is sure whatever the times: a lane starts its tasks in order, a task starts after its waits
/// ended, and the compute lane runs one task at a time.
class SureOrder {
 public:
  explicit SureOrder(const std::vector<Task>& tasks);
  /// True when task `first` has ended whenever task `second` starts.
  bool ends_before(TaskId first, TaskId second) const {
    return ended_[static_cast<size_t>(second)][static_cast<size_t>(first)];
  }

 private:
  std::vector<std::vector<bool>> ended_;  ///< [task][other]: other has ended when task starts
};

bool is_load(const Task& task);
bool is_store(const Task& task);

}  // namespace sluice
