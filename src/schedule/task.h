#pragma once
// One task of a schedule: what to do on which lane, which buffer it fills, and the tasks it waits
// for. A schedule is a sequence of tasks in which every wait points backwards; each lane takes its
// own tasks in that order, so a schedule can't deadlock. The executor runs the stream on devices; a
// simulator can run the same stream on a profile.
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "src/schedule/lanes.h"

namespace sluice {

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

/// Which segment of a sublayer a compute task computes: the sublayer is cut where something outside
/// must happen, so that the device goes on with other micro-batches meanwhile.
enum class ComputeStep : uint8_t {
  kWhole,
  kBeforeAttention,  ///< norm, q, k, v; attention of the sequences whose KV is on the device
  kHostAttention,    ///< on the host compute lane
  kAfterAttention,   ///< output projection, residual
  kUntilRoute,       ///< up to what says which experts the micro-batch goes to
  kSomeExperts,      ///< these experts' answers to the rows that go to them
  kAfterRoute        ///< all answers added up, and what is behind them
};

constexpr size_t kComputeSteps = 7;  ///< kinds of these

using TaskId = int64_t;
constexpr TaskId kNoTask = -1;

/// Of kLoadWeights: a part of a sublayer's streamed rows on its way into the ring of the tier that
/// computes.
struct PartLoad {
  int32_t part = 0;          ///< which of the sublayer's
  int64_t offset = 0;        ///< where it lies in that ring, bytes
  int32_t slot = -1;         ///< of an expert's that has a slot instead: which of `home`'s
  int64_t host_offset = -1;  ///< of one that passes through host memory: where in the host's ring
  int32_t home = -1;         ///< whose slot it is: a sublayer, or -1: the task's own
};

/// Of loads and stores of KV and of activations: the staging slots that they fill or empty.
struct StateMove {
  int32_t slot = -1;       ///< in the tier that computes; -1: this task doesn't touch it
  int32_t host_slot = -1;  ///< at the stop below
  /// Of the disk's transfers, which touch one of them: that.
  int32_t disk_slot() const noexcept { return slot >= 0 ? slot : host_slot; }
};

/// Of kSendQueries and kReturnOutputs.
struct AttentionMove {
  int32_t slot = -1;  ///< of the exchange
};

/// An expert that is in a slot: of its layer's, or what was guessed in that of another one.
struct ExpertPlace {
  int32_t expert = 0;
  int32_t slot = 0;
  int32_t home = -1;  ///< whose slot it is: a sublayer, or -1: the task's own
  bool operator==(const ExpertPlace&) const = default;
};

/// Of kCompute.
struct ComputeWork {
  ComputeStep step = ComputeStep::kWhole;
  int32_t kv_slot = -1;               ///< staging slot of the KV it attends to; -1: none is staged
  int32_t host_kv_slot = -1;          ///< of attention on the host: staging slot of KV from disk
  int32_t attention_slot = -1;        ///< of what attention on the host needs and gives
  int32_t activation_slot = -1;       ///< of the hidden-state rows that live lower
  std::vector<int64_t> part_offsets;  ///< where the sublayer's parts lie in the ring; -1: nowhere
  std::vector<ExpertPlace> experts;   ///< in slots; of kSomeExperts those that are computed

  /// Whether tasks of other lanes wait for this one, what it works on or leaves being theirs next:
  /// a device's queue is then waited for.
  bool hands_over() const noexcept {
    return !part_offsets.empty() || kv_slot >= 0 || activation_slot >= 0 || attention_slot >= 0;
  }
};

struct Task {
  TaskId id = kNoTask;  ///< counts up over all passes of a stream
  TaskKind kind = TaskKind::kCompute;
  Lane lane = Lane::kDeviceCompute;
  int32_t sublayer = 0;
  int32_t micro_batch = 0;  ///< of kLoadWeights: the one during whose step the part is loaded
  int64_t pass = 0;
  int64_t bytes = 0;                                                   ///< moved by a transfer
  std::variant<ComputeWork, PartLoad, StateMove, AttentionMove> work;  ///< as `kind` says
  std::vector<TaskId> waits;

  const ComputeWork& compute() const { return std::get<ComputeWork>(work); }
  const PartLoad& part_load() const { return std::get<PartLoad>(work); }
  const StateMove& state_move() const { return std::get<StateMove>(work); }
  const AttentionMove& attention_move() const { return std::get<AttentionMove>(work); }
};

/// Folds what a task is (kind, lane, step, pass, sublayer, micro-batch, part, slots, waits; not its
/// bytes and offsets) into `hash`, which starts as 0: equal streams have equal hashes, so that what
/// was simulated and what was executed can be held against each other.
uint64_t fold_task(uint64_t hash, const Task& task) noexcept;

}  // namespace sluice
