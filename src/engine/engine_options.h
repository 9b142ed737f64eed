#pragma once
// What an engine is asked for.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "io/async/file_engine.h"
#include "kernels/quantised_linear.h"
#include "policy/plan.h"
#include "src/device/emulated_device.h"
#include "src/engine/runners/backend.h"
#include "src/engine/stores/adapter_bank.h"
#include "src/engine/stores/weight_store.h"

namespace sluice {

/// What products are computed in.
enum class ComputeChoice : uint8_t {
  kAuto,  ///< bf16 for bf16 weights where the CPU multiplies bf16, else f32
  kF32,
  kBF16
};

/// The pass under way, for people who wait.
struct RunningPass {
  int64_t pass = 0;  ///< of the engine's, from 0
  double share = 0;  ///< of its computing that is behind it, 0 to 1
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t waiting_tokens = 0;  ///< of running sequences' prompts, for the passes that follow
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
  policy::Workload workload;   ///< what the budget has to hold
  int64_t context_tokens = 0;  ///< longest sequence; 0: the workload's, at most the model's
  ComputeChoice compute = ComputeChoice::kAuto;
  /// What int4 and int8 weights are multiplied with.
  kernels::ActivationFormat activations = kernels::ActivationFormat::k16Bit;
  float outlier_threshold = 0;  ///< LLM.int8() with int8 activations; 0: none
  /// A sequence's logits are the same bits whoever runs beside it, on the CPU
  /// (docs/batch-invariance.md).
  bool batch_invariant = false;
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
  /// Room for low-rank adapters, which requests choose (Engine::adapters()); adapter_room() counts.
  AdapterRoom adapters;
  int threads = 0;  ///< of compute; 0: all the process may use
  io::IoMode io_mode = io::IoMode::kAuto;
  bool direct_io = true;
  bool keep_trace = false;
  /// False: every operator of a layer by itself, as the family wrote them; to compare.
  bool fuses_operators = true;
  std::function<void(std::string_view)> log;   ///< one line at a time, no newline; may be empty
  std::function<void(std::string_view)> warn;  ///< the same: a slower way of reading than planned
  std::function<void(const LoadProgress&)> load_progress;
  /// As computing goes on, many times a pass, from whichever thread computes; must be quick.
  std::function<void(const RunningPass&)> pass_progress;
  /// Of a mixture whose experts have slots: who had them when the last run ended, read before
  /// weights are loaded and written when a run ends. Any will do; empty: none.
  std::string experts_file;
  ProductObserver observe_product;  ///< for calibration; may be empty
  ChoiceObserver observe_choices;   ///< of routers; may be empty
};

}  // namespace sluice
