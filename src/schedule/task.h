#pragma once
// One task of a schedule: what to do on which lane, which buffer it fills, and the tasks it waits
// for. A schedule is a sequence of tasks in which every wait points backwards; each lane takes its
// own tasks in that order, so a schedule can't deadlock. The executor runs the stream on devices; a
// simulator can run the same stream on a profile.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

enum class Lane : uint8_t {
  kDiskRead,
  kDiskWrite,
  kHostToDevice,
  kDeviceToHost,
  kDeviceCompute,
  kHostCompute
};
constexpr int kLaneCount = 6;
std::string_view lane_name(Lane lane) noexcept;

/// FlexGen's six tasks (arXiv:2303.06865 section 3.2).
enum class TaskKind : uint8_t {
  kLoadWeights,
  kLoadKv,
  kLoadActivations,
  kCompute,
  kStoreKv,
  kStoreActivations
};
std::string_view task_kind_name(TaskKind kind) noexcept;

using TaskId = int64_t;
constexpr TaskId kNoTask = -1;

struct Task {
  TaskId id = kNoTask;  ///< counts up over all passes of a stream
  TaskKind kind = TaskKind::kCompute;
  Lane lane = Lane::kDeviceCompute;
  int64_t pass = 0;
  int32_t sublayer = 0;
  int32_t micro_batch =
      0;               ///< of kLoadWeights: the micro-batch during whose step the part is loaded
  int32_t part = 0;    ///< of kLoadWeights: which part of the sublayer's streamed rows
  int64_t offset = 0;  ///< of kLoadWeights: where the part lies in the weight ring, bytes
  int32_t slot =
      -1;  ///< KV tasks and their compute task, activation transfers: staging slot; -1 none
  int32_t activation_slot =
      -1;             ///< of kCompute: slot of the hidden-state rows that live on disk; -1 none
  int64_t bytes = 0;  ///< moved by a transfer task
  std::vector<int64_t> part_offsets;  ///< of kCompute: where the sublayer's parts lie in the ring
  std::vector<TaskId> waits;
};

}  // namespace sluice
