#pragma once
// The operators of LayerOps on the CPU kernels, for one (sublayer, micro-batch) at a time. Owns the
// workspace that all of them share; allocates nothing after construction but small index vectors.
// An attention sublayer that is cut around attention on the host is walked twice: the first walk
// computes up to attend() and skips the rest, the second skips what comes before it.
#include <span>
#include <vector>

#include "src/device/emulated_device.h"
#include "src/engine/host_compute.h"
#include "src/engine/sublayer_runner.h"

namespace sluice {

class LayerRunner final : public SublayerRunner, private LayerOps {
 public:
  /// `device` (null: the CPU itself) is the emulated one. `workspace` has at least
  /// workspace_bytes() of the same numbers, and so has `host_workspace` where the host computes
  /// beside a device. Errors: none.
  LayerRunner(const RunnerParts& parts, EmulatedDevice* device, std::span<std::byte> workspace,
              std::span<std::byte> host_workspace);

  void run(const Task& task, const MicroBatch& batch, size_t batch_index,
           const LogitsConsumer& consumer) override;
  int64_t exchanged_down_bytes() const noexcept override { return exchanged_down_; }
  int64_t exchanged_up_bytes() const noexcept override { return exchanged_up_; }

 private:
  const SublayerShape& sublayer() const override { return *sublayer_; }
  Rows workspace(int64_t cols) override;
  void gather_tokens(std::string_view role, Rows out) override;
  void gather_positions(std::string_view role, int64_t offset, Rows out) override;
  void set_hidden(Rows in) override;
  void read_hidden(Rows out) override;
  void norm_hidden(const NormSpec& norm, Rows out) override;
  void norm_hidden_in_place(const NormSpec& norm) override;
  void add_to_hidden(Rows in) override;
  void read_needed_hidden(Rows out) override;
  void norm(const NormSpec& norm, Rows in_out) override;
  void add(Rows in_out, Rows in) override;
  void linear(std::string_view role, std::string_view bias, Rows in, Rows out) override;
  void rope(Rows in_out, int64_t heads, std::span<const float> inverse_frequencies,
            float factor) override;
  void attend(Rows q, Rows k, Rows v, Rows out) override;
  void activate(Activation activation, Rows in_out) override;
  void silu_mul(Rows gate, Rows up, Rows out) override;
  void logits(std::string_view role, Rows in) override;

  size_t weight_index(std::string_view role) const;
  const float* vector_or_null(std::string_view role) const;
  void apply_norm(const NormSpec& norm, const float* x, float* y, int64_t rows, int64_t cols) const;
  kernels::Activations activations(Rows in);
  void written(const Rows& rows);
  void multiply(const MatrixView& view, const kernels::Activations& x, const float* bias, float* y,
                int64_t ldy);

  void multiply_inplace(const MatrixView& view, const kernels::Activations& x, const float* bias,
                        float* y, int64_t ldy, Link::Clock::time_point input_arrives);
  void attend_on_device(Rows q, Rows k, Rows v, Rows out);
  void attend_with_recent_kv(std::span<const kernels::AttentionSequence> sequences, Rows k, Rows v);
  void keep_for_host(Rows q, Rows k, Rows v, Rows out) const;

  RunnerParts parts_;
  EmulatedDevice* device_;
  WorkspaceAreas areas_;
  HostCompute host_;

  const SublayerShape* sublayer_ = nullptr;
  const MicroBatch* batch_ = nullptr;
  const LogitsConsumer* consumer_ = nullptr;
  Task task_;
  bool skips_ = false;  // operators do nothing: the other half of a cut sublayer
  std::vector<HiddenStore::Piece> hidden_;
  int64_t rows_ = 0;                    // of workspace() matrices
  int64_t rows_used_ = 0;               // bytes of areas_.rows in use
  const float* bf16_source_ = nullptr;  // what areas_.bf16 holds a copy of
  int64_t bf16_elements_ = 0;
  double device_flops_ = 0;
  int64_t exchanged_down_ = 0;
  int64_t exchanged_up_ = 0;
  std::vector<std::byte*> page_addresses_;
  std::vector<int32_t> ids_;
};

}  // namespace sluice
