#pragma once
// The engine: one model, one plan, one loop. Reserves everything the plan names before the first
// weight is read, then runs ragged passes of a block of sequences, refilled
// from a source as sequences end (src/engine/batching/batcher.h). A model that fits runs through
// the same loop with nothing to stream. Not thread safe: one thread calls generate();
// request_stop() on the token's source may come from any thread.
#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "policy/kernel_times.h"
#include "src/device/lane_executor.h"
#include "src/engine/engine_plan.h"
#include "src/engine/held_experts.h"
#include "src/engine/passes/sequence.h"

namespace sluice {

/// What was computed in passes of one class of the plan's.
struct PassClassStats {
  int64_t passes = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;  ///< of sequences whose prompt is behind them
  double seconds = 0;
  /// Of these, of passes that hold no prompt tokens.
  int64_t decode_pass_tokens = 0;
  double decode_pass_seconds = 0;
};

/// What an engine has done since it was made.
struct EngineStats {
  double load_seconds = 0;
  int64_t loaded_bytes = 0;
  double prefill_seconds = 0;  ///< of passes that hold prompt tokens
  int64_t prefill_tokens = 0;
  double decode_seconds = 0;  ///< of passes that hold none
  int64_t decode_tokens = 0;  ///< sampled, first tokens of prompts included
  int64_t first_tokens = 0;   ///< of these, chosen in a pass that holds prompt tokens
  int64_t passes = 0;
  std::vector<PassClassStats> classes;  ///< [class of the plan]
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;  ///< of prompts, not computed again
  int64_t copied_pages = 0;       ///< that beams shared until one wrote to them; or below
  int64_t saved_pages = 0;        ///< to the swap space
  int64_t restored_pages = 0;     ///< from there, instead of being computed again
  int64_t peak_memory_bytes = 0;  ///< of the arena
  int64_t peak_device_bytes = 0;
  int64_t device_budget_bytes = 0;  ///< 0: no device
  int64_t pinned_bytes = 0;         ///< of host memory, page-locked for a device's copies
  int64_t pageable_bytes = 0;       ///< that the system would not lock for them
  int64_t peak_disk_bytes = 0;
  int64_t memory_budget_bytes = 0;
  int64_t disk_budget_bytes = 0;
  std::vector<std::pair<Lane, LaneStats>> lanes;  ///< those that did something
  LaneTable machine;                              ///< whose they are
  int64_t gathered_bytes = 0;                     ///< table rows read one by one
  ExpertCounts experts;                           ///< of a mixture whose experts have slots
  int64_t repacked_bytes = 0;                     ///< that streamed rows of another tool became
  double repack_seconds = 0;                      ///< beside reading and computing
  double disk_read_busy_seconds = 0;              ///< with a request at the disk
  uint64_t stream_hash = 0;     ///< of the tasks executed (fold_task); equal for equal schedules
  double wall_seconds = 0;      ///< of generate()
  int64_t hand_overs = 0;       ///< times that the host waited for a device's queue
  policy::KernelTimes kernels;  ///< on the host's cores
};

class Engine {
 public:
  /// Reserves what `plan` names; reads no weights yet. `input` is plan_input()'s of the same model
  /// and options. Errors: kResource (disk, memory).
  Engine(std::shared_ptr<const BoundModel> model, EngineOptions options, EngineInput input,
         policy::Plan plan);
  /// With the plan that the options ask for (choose_plan).
  static std::unique_ptr<Engine> open(std::shared_ptr<const BoundModel> model,
                                      EngineOptions options);
  /// The same of a checkpoint. Errors: kFile (checkpoint), kResource (budget, disk), kUser
  /// (policy).
  static std::unique_ptr<Engine> open(const std::filesystem::path& model_path,
                                      EngineOptions options);
  ~Engine();

  const BoundModel& model() const noexcept;
  const policy::Plan& plan() const noexcept;
  const EngineOptions& options() const noexcept;
  /// "bf16 (AMX)", "f32": what the linear layers compute with.
  std::string compute_name() const;
  std::string io_name() const;
  /// Longest sequence (prompt + output) that this engine takes.
  int64_t context_tokens() const noexcept;

  /// Reads the resident weights; generate() does it when it has not been done. Errors: kFile,
  /// kCancelled.
  void load(std::stop_token cancel = {});

  /// Runs all requests of `source` and returns when the last has ended. On an error or a cancel,
  /// running sequences end with kCancelled before it is rethrown; what the sink has got stays
  /// right. May be called again.
  void generate(RequestSource& source, GenerationSink& sink, std::stop_token cancel = {});

  /// What requests may choose; adapters may be loaded and unloaded from any thread while it runs.
  /// None of them, and no request that has one, outlives the engine.
  AdapterBank& adapters() noexcept;
  /// Requests that choose none have this one, from the next generate() on; null: none.
  void set_default_adapter(AdapterPtr adapter) noexcept;

  EngineStats stats() const;
  /// With keep_trace: every task so far.
  const std::vector<TaskEvent>& trace() const;
  const LaneTable& machine() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A Chrome / Perfetto trace of `events`, lanes as threads.
std::string chrome_trace_json(const std::vector<TaskEvent>& events, const LaneTable& machine,
                              const ModelShape& model);

}  // namespace sluice
