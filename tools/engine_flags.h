#pragma once
// The options that every command with an engine shares, and what becomes of them.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "src/app/open_model.h"
#include "src/app/routing_recorder.h"
#include "src/engine/engine.h"
#include "src/text/tokenizer.h"

namespace sluice::tools {

/// Which of several adapters (--lora) a command's requests have.
enum class AdapterUse : uint8_t {
  kOne,        ///< all the same: the only one, or --adapter says which
  kByRequest,  ///< requests name theirs
  kInTurn      ///< one after the other
};

struct EngineFlags {
  std::string model;
  std::string pretokenizer;        ///< empty: what the model's files say
  std::vector<std::string> loras;  ///< NAME=DIR
  std::string adapter;             ///< of kOne
  AdapterUse adapter_use = AdapterUse::kOne;
  std::string device, device_memory;
  int gpu = -1;  ///< which, where a GPU is asked for
  bool has_no_cuda_graphs = false, is_gpu_direct = false;
  PositionWishes positions;  ///< but for context_tokens
  std::string memory, disk, offload_dir;
  std::string policy_file;
  std::vector<double> percent;
  int64_t micro_batch_sequences = 0, micro_batches = 0, micro_batch_tokens = 0, page_tokens = 0;
  int64_t context = 0, kv_recent = 0;
  int threads = 0;
  bool batch_invariant = false;
  double outlier_threshold = 0, attention_sparsity = 1;
  std::string activations = "16";
  std::string compute = "auto", kv_dtype, io = "auto", isa, trace;
  std::string record_routing;  ///< a file; empty: nothing is recorded
  std::string hardware;
  bool recalibrate = false;
  bool dry_run = false, json = false, verbose = false;
  /// Whole blocks in memory wherever they fit, whatever a search expects of smaller ones.
  bool prefers_memory = false;

  void add_to(CLI::App& parser);
  /// --record-routing too.
  void add_recording_to(CLI::App& parser);
  /// Errors: kUser for contradictions and for flags that have no effect here.
  EngineOptions options(const policy::Workload& workload) const;

 private:
  std::vector<std::string> refused_;
};

/// An engine and the plan that was found for it; a pointer to the engine.
struct OpenedEngine {
  std::unique_ptr<Engine> engine;
  app::FoundPlan found;
  std::shared_ptr<app::RoutingRecorder> recorder;  ///< null: nothing is recorded

  explicit operator bool() const noexcept { return engine != nullptr; }
  Engine& operator*() const noexcept { return *engine; }
  Engine* operator->() const noexcept { return engine.get(); }
};

/// The model, as the flags want its positions. `sequence_tokens`: of the longest sequence that will
/// be computed; 0: not known.
std::shared_ptr<const BoundModel> open_model(const EngineFlags& flags, int64_t sequence_tokens = 0);
/// Opens the engine and says in one line (or, verbose, a table) what it will do. Empty when
/// --dry-run: the plan has been printed and nothing is left to do.
/// `adjust` may change the options that the flags gave; `cancel` stops a first measurement.
OpenedEngine open_engine(const EngineFlags& flags, const policy::Workload& workload,
                         std::stop_token cancel = {},
                         const std::function<void(EngineOptions&)>& adjust = {});
/// The same of a model that is open already. `planned` is told the plan before any of the engine's
/// memory is taken.
OpenedEngine open_engine(const EngineFlags& flags, std::shared_ptr<const BoundModel> model,
                         const policy::Workload& workload, std::stop_token cancel = {},
                         const std::function<void(EngineOptions&)>& adjust = {},
                         const std::function<void(const policy::Plan&)>& planned = {});
/// Writes the trace, prints the end-of-run table (not with --json), and has the machine's kept
/// profile learn from the run.
void finish_run(const EngineFlags& flags, const OpenedEngine& opened);
/// What the adapters of --lora are, for keys of what was computed with them; empty: there are none.
std::string adapters_key(const std::vector<std::string>& loras);
/// Of kInTurn: what request `number` has; null where there are no adapters.
AdapterPtr adapter_in_turn(Engine& engine, uint64_t number);
/// The model's tokenizer, or null when it has none.
std::unique_ptr<text::Tokenizer> find_tokenizer(const EngineFlags& flags);
/// find_tokenizer, or kFile saying how to do without.
std::unique_ptr<text::Tokenizer> need_tokenizer(const EngineFlags& flags);

}  // namespace sluice::tools
