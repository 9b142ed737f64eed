#pragma once
// Something other than the CPU to compute on: its memory and links, and what runs the sublayers
// there. Made by whoever opens the engine, since the engine itself knows no GPU. One engine at a
// time uses it.
#include <memory>
#include <string>

#include "io/async/file_engine.h"
#include "src/device/device.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

/// "inputs of 16 bits with q4_k weights": of the model's quantised formats those that do not take
/// the 8-bit activations that `compute` asks for; empty: all take them, or none are asked for.
std::string with_16_bit_inputs(const ModelShape& model, const kernels::QuantisedOptions& compute,
                               bool (*takes)(const WeightFormat&, kernels::ActivationFormat));

class Backend {
 public:
  virtual ~Backend() = default;
  /// "NVIDIA H100".
  virtual std::string name() const = 0;
  virtual Device& device() noexcept = 0;
  /// What reads files straight into device().memory(); null: they pass through host memory.
  virtual io::FileEngine* direct_reader() noexcept { return nullptr; }
  /// Errors: kUser, when it can't run the model so.
  virtual void require_runnable(const ModelShape& model, const AttentionShapes& attention,
                                const kernels::QuantisedOptions& compute) const = 0;
  /// What it computes in another way than `compute` says ("inputs of 16 bits with q4_k weights");
  /// empty: nothing.
  virtual std::string otherwise(const ModelShape&, const kernels::QuantisedOptions&) const {
    return {};
  }
  /// Type that KV has when nobody chose one.
  virtual KvFormat default_kv(const ModelShape& model) const = 0;
  /// Device memory that a micro-batch of `tokens` rows needs beside weights and KV, where adapters
  /// have ranks up to `adapter_rank` (0: there are none).
  virtual int64_t workspace_bytes(const ModelShape& model, const AttentionShapes& attention,
                                  const kernels::QuantisedOptions& compute, int64_t tokens,
                                  int64_t adapter_rank) const = 0;
  /// Host memory that its runner copies through.
  virtual int64_t host_staging_bytes(const ModelShape& model, const AttentionShapes& attention,
                                     int64_t tokens, int64_t adapter_rank) const = 0;
  /// `host_workspace`: what HostCompute needs where the plan has the host compute, and then
  /// host_staging_bytes() at its end.
  virtual std::unique_ptr<SublayerRunner> make_runner(const RunnerParts& parts,
                                                      std::span<std::byte> workspace,
                                                      std::span<std::byte> host_workspace) = 0;
};

}  // namespace sluice
