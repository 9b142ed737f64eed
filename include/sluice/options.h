#pragma once
// What a model is to run on, and what it has to hold. A plain value; 0 and empty texts leave the
// choice to the library. Errors name these fields.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct Options {
  // Budgets.
  int64_t memory_budget_bytes = 0;  ///< host memory of weights, KV and buffers; 0: what is free
  int64_t disk_budget_bytes = 0;    ///< of files for KV and activations; 0: what the disk has
  std::string offload_dir;          ///< folder of these files; empty: the temporary folder

  // The load that the budgets have to hold.
  int64_t sequences = 1;           ///< that run at the same time, at most
  int64_t context_tokens = 2048;   ///< prompt and output of the longest, at most the model's
  int64_t kv_tokens = 0;           ///< of all of them together; 0: sequences x context_tokens
  bool predicts_lengths = false;   ///< reserves KV for the lengths that outputs turn out to have
  bool keeps_prefixes = false;     ///< computes what sequences begin alike once

  // How to compute.
  int threads = 0;       ///< 0: all that the process may use
  std::string compute;   ///< "f32", "bf16"; empty: as the weights and the CPU allow
  /// A sequence's logits are the same bits whoever runs beside it; on the CPU, slower.
  bool batch_invariant = false;
  std::string kv_dtype;  ///< "f32", "f16", "bf16", "int8", "k8v4", "int4"; empty: as the weights
  std::string device;    ///< "cuda", "emulated:mem=4GiB,..." (docs/emulated-device.md); empty: CPU
  int gpu = 0;           ///< which, with "cuda"
  int64_t device_budget_bytes = 0;  ///< of its memory; 0: what is free

  /// Low-rank adapters as PEFT writes them, "NAME=FOLDER" each, that requests choose by name; all
  /// in memory.
  std::vector<std::string> lora;

  // Where things go.
  /// The machine to search a plan on: empty or "this" (its kept profile; measured once where there
  /// is something to decide), "none" (fills the budget without a search), a shipped profile's name
  /// or the path of one.
  std::string hardware;
  std::string policy;  ///< a policy by hand, JSON (docs/formats/policy.md)

  std::function<void(std::string_view)> log;  ///< a line at a time, any thread; may be empty
};

}  // namespace sluice
