#pragma once
// All that an engine holds: the arenas of its budgets, open files, and in them the stores of
// weights, state and hidden rows, and work space. The lanes' transfers between them are here, too.
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "io/async/file_engine.h"
#include "src/base/arena.h"
#include "src/device/emulated_device.h"
#include "src/device/lane_executor.h"
#include "src/engine/engine_plan.h"
#include "src/engine/passes/pass_plan.h"
#include "src/engine/stores/adapter_bank.h"
#include "src/engine/stores/attention_exchange.h"
#include "src/engine/stores/hidden_store.h"
#include "src/engine/stores/kv_store.h"
#include "src/engine/stores/recent_kv.h"
#include "src/engine/stores/weight_store.h"

namespace sluice {

/// Not copied or moved: its parts refer to each other.
struct EngineStores {
  /// Errors: kResource where a budget does not hold the plan's sizes, kSystem from files.
  EngineStores(const BoundModel& model, const EngineOptions& options, const EnginePlan& planned);
  EngineStores(const EngineStores&) = delete;
  EngineStores& operator=(const EngineStores&) = delete;

  /// Starts the transfer of a task of `pass`; `done` is called once, from any thread, also when it
  /// fails.
  void transfer(const Task& task, const LaneTable& machine, const PassPlan& pass,
                std::function<void(std::exception_ptr)> done);
  /// What the micro-batches of a pass will move.
  std::vector<MicroBatchLoad> loads_of(const PassPlan& pass) const;
  /// Host memory that passes write first.
  std::vector<std::span<std::byte>> memory_to_fault();
  /// Reads and places resident weights, in the work space.
  void load_resident(const WeightStore::HeldLists& held,
                     const std::function<void(const LoadProgress&)>& progress,
                     std::stop_token cancel);

  const BoundModel& model;
  Arena memory;
  Arena disk;
  std::unique_ptr<io::FileEngine> file_engine;
  std::unique_ptr<io::FileEngine> gather_engine;
  std::unique_ptr<EmulatedDevice> emulated;  ///< before everything that lives in its memory
  Device* device = nullptr;                  ///< that or the backend's
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<AdapterBank> adapters;
  std::unique_ptr<KvStore> kv;
  std::unique_ptr<RecentKv> recent;
  std::unique_ptr<HiddenStore> hidden;
  std::unique_ptr<AttentionExchange> exchange;
  Buffer workspace;
  Buffer host_workspace;  ///< below a device
  Buffer expert_answers;  ///< f32, of experts that are computed one by one

 private:
  void use_disk(const Task& task, const PassPlan& pass,
                std::function<void(std::exception_ptr)> done);
  void use_link(const Task& task, const LaneTable& machine, const PassPlan& pass);
};

}  // namespace sluice
