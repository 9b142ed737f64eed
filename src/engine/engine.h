#pragma once
// The engine: one model, one policy, one loop. Opens a checkpoint, reserves everything the plan
// names before the first weight is read, then runs ragged passes of a block of sequences, refilled
// from a source as sequences end (src/engine/batcher.h). A model that fits runs through the same
// loop with nothing to stream. Not thread safe: one thread calls generate(); request_stop() on the
// token's source may come from any thread.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "io/file_engine.h"
#include "kernels/quantised_linear.h"
#include "policy/kernel_times.h"
#include "policy/plan.h"
#include "src/device/emulated_device.h"
#include "src/device/lane_executor.h"
#include "src/engine/backend.h"
#include "src/engine/sequence.h"
#include "src/engine/weight_store.h"
#include "src/model/bound_model.h"

namespace sluice {

enum class ComputeChoice : uint8_t {
  kAuto,  ///< bf16 for bf16 weights where the CPU multiplies bf16, else f32
  kF32,
  kBF16
};

struct EngineOptions {
  /// Computes on an emulated device with memory of its own (three tiers); nothing: on the CPU.
  std::optional<EmulatedSpec> device;
  /// Computes on this instead (three tiers); it outlives the engine. Not with `device`.
  std::shared_ptr<Backend> backend;
  int64_t memory_budget_bytes =
      0;  ///< of weights, KV, activations and buffers; 0: what is free of the machine or cgroup
  std::string
      offload_dir;  ///< for KV and activations on disk; empty: the system's temporary folder
  int64_t disk_budget_bytes = 0;         ///< of offload files; 0: no limit but the disk's
  std::optional<policy::Policy> policy;  ///< by hand; nothing: the default fills the budget
  policy::Policy
      start_policy;  ///< without `policy`: page and chunk sizes for the default to start from
  /// Finds the policy from what the engine knows (shape, budgets, kernels' sizes), or looks at the
  /// one given; nothing: `policy`, or the default. What it throws goes to the caller of open().
  std::function<policy::Policy(const policy::PlanInput&, const policy::Policy& start)>
      choose_policy;
  policy::Workload workload;   ///< what the budget has to hold
  int64_t context_tokens = 0;  ///< longest sequence; 0: the workload's, at most the model's
  ComputeChoice compute = ComputeChoice::kAuto;
  /// What int4 and int8 weights are multiplied with.
  kernels::ActivationFormat activations = kernels::ActivationFormat::k16Bit;
  float outlier_threshold = 0;       ///< LLM.int8() with int8 activations; 0: none
  std::optional<KvFormat> kv_dtype;  ///< nothing: as the weights
  /// Share of the visible positions whose values each head reads (kernels/attention.h); 1: all.
  float attention_sparsity = 1;
  /// With quantised KV: newest tokens of each sequence that attention reads in 16 bits; 0: none.
  int64_t kv_recent_tokens = 0;
  /// Reserves KV for the lengths that outputs turn out to have, instead of max_tokens; where it
  /// runs short, sequences give their pages up and are computed again.
  bool predict_lengths = false;
  /// Keeps the KV pages of what was computed for sequences that begin alike. Not with recent tokens
  /// in 16 bits.
  bool cache_prefixes = false;
  /// With cache_prefixes: room for pages that are given up, in host memory below a device, else on
  /// disk; they come back where copying is cheaper than computing.
  int64_t swap_bytes = 0;
  bool swaps_always = false;  ///< whatever copying and computing cost
  /// Whole batches one after the other, as engines without continuous batching: for comparison.
  bool static_batches = false;
  int threads = 0;  ///< of compute; 0: all the process may use
  io::IoMode io_mode = io::IoMode::kAuto;
  bool direct_io = true;
  bool keep_trace = false;
  std::function<void(std::string_view)> log;   ///< one line at a time, no newline; may be empty
  std::function<void(std::string_view)> warn;  ///< the same: a slower way of reading than planned
  std::function<void(const LoadProgress&)> load_progress;
  InputObserver observe_input;  ///< for calibration; may be empty
};

struct EngineStats {
  double load_seconds = 0;
  int64_t loaded_bytes = 0;
  double prefill_seconds = 0;  ///< of passes that hold prompt tokens
  int64_t prefill_tokens = 0;
  double decode_seconds = 0;  ///< of passes that hold none
  int64_t decode_tokens = 0;  ///< sampled, first tokens of prompts included
  int64_t first_tokens = 0;   ///< of these, chosen in a pass that holds prompt tokens
  int64_t passes = 0;
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
  int64_t gathered_bytes = 0;                     ///< table rows read one by one
  double disk_read_busy_seconds = 0;              ///< with a request at the disk
  uint64_t stream_hash = 0;     ///< of the tasks executed (fold_task); equal for equal schedules
  double wall_seconds = 0;      ///< of generate()
  policy::KernelTimes kernels;  ///< on the host's cores
};

class Engine {
 public:
  /// Plans and reserves; reads no weights yet. Errors: kFile (checkpoint), kResource (budget,
  /// disk), kUser (policy).
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

  EngineStats stats() const;
  /// With keep_trace: every task so far.
  const std::vector<TaskEvent>& trace() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A Chrome / Perfetto trace of `events`, lanes as threads.
std::string chrome_trace_json(const std::vector<TaskEvent>& events, const ModelShape& model);

}  // namespace sluice
