#pragma once
// The engine's backend on one GPU. Links with the kernels of a GPU, or with their stand-in on the
// host in tests.
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/gpu_direct_engine.h"
#include "src/engine/runners/backend.h"

namespace sluice {

class CudaBackend final : public Backend {
 public:
  /// As CudaDevice. `uses_graphs`: decode passes of resident models are launched as a whole.
  CudaBackend(int gpu, int64_t memory_bytes, bool uses_graphs = true,
              const PinnedSource::Sizes& pinning = {})
      : device_(gpu, memory_bytes, pinning), uses_graphs_(uses_graphs) {}
  /// Weights come from disk into the GPU's memory by `direct`; before an engine is opened.
  void read_with(std::unique_ptr<GpuDirectEngine> direct) { direct_ = std::move(direct); }

  std::string name() const override { return device_.properties().name; }
  Device& device() noexcept override { return device_; }
  io::FileEngine* direct_reader() noexcept override { return direct_.get(); }
  CudaDevice& cuda_device() noexcept { return device_; }
  void require_runnable(const ModelShape& model, const AttentionShapes& attention,
                        const kernels::QuantisedOptions& compute) const override;
  std::string otherwise(const ModelShape& model,
                        const kernels::QuantisedOptions& compute) const override;
  KvFormat default_kv(const ModelShape& model) const override;
  int64_t workspace_bytes(const ModelShape& model, const AttentionShapes& attention,
                          const kernels::QuantisedOptions& compute, int64_t tokens,
                          int64_t adapter_rank) const override;
  int64_t host_staging_bytes(const ModelShape& model, const AttentionShapes& attention,
                             int64_t tokens, int64_t adapter_rank) const override;
  std::unique_ptr<SublayerRunner> make_runner(const RunnerParts& parts,
                                              std::span<std::byte> workspace,
                                              std::span<std::byte> host_workspace) override;

 private:
  CudaDevice device_;
  bool uses_graphs_;
  std::unique_ptr<GpuDirectEngine> direct_;
};

}  // namespace sluice
