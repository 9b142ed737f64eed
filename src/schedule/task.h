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
  kStoreActivations,
  kSendQueries,   ///< queries and new keys and values down, for attention on the host
  kReturnOutputs  ///< its outputs up
};
std::string_view task_kind_name(TaskKind kind) noexcept;

/// Which part of a sublayer a compute task computes. Attention on the host cuts an attention
/// sublayer in three, so that the device goes on with other micro-batches meanwhile.
enum class ComputeStep : uint8_t {
  kWhole,
  kBeforeAttention,  ///< norm, q, k, v; attention of the sequences whose KV is on the device
  kHostAttention,    ///< on the host compute lane
  kAfterAttention    ///< output projection, residual
};

using TaskId = int64_t;
constexpr TaskId kNoTask = -1;

struct Task {
  TaskId id = kNoTask;  ///< counts up over all passes of a stream
  TaskKind kind = TaskKind::kCompute;
  Lane lane = Lane::kDeviceCompute;
  ComputeStep step = ComputeStep::kWhole;  ///< of kCompute
  int64_t pass = 0;
  int32_t sublayer = 0;
  int32_t micro_batch =
      0;               ///< of kLoadWeights: the micro-batch during whose step the part is loaded
  int32_t part = 0;    ///< of kLoadWeights: which part of the sublayer's streamed rows
  int64_t offset = 0;  ///< of kLoadWeights: where the part lies in the compute tier's ring, bytes
  int64_t host_offset = -1;  ///< of kLoadWeights through host memory: where in the host's ring
  int32_t slot =
      -1;  ///< KV tasks and their compute task, activation transfers: staging slot; -1 none
  int32_t host_slot = -1;       ///< of transfers that pass through host memory: staging slot there
  int32_t attention_slot = -1;  ///< of the tasks of attention on the host: its exchange slot
  int32_t activation_slot =
      -1;             ///< of kCompute: slot of the hidden-state rows that live on disk; -1 none
  int64_t bytes = 0;  ///< moved by a transfer task
  std::vector<int64_t> part_offsets;  ///< of kCompute: where the sublayer's parts lie in the ring
  std::vector<TaskId> waits;
};

/// Folds what a task is (kind, lane, step, pass, sublayer, micro-batch, part, slots, waits; not its
/// bytes and offsets) into `hash`, which starts as 0: equal streams have equal hashes, so that what
/// was simulated and what was executed can be held against each other.
uint64_t fold_task(uint64_t hash, const Task& task) noexcept;

}  // namespace sluice
