#pragma once
// The operators of LayerOps on the CPU kernels, for one (sublayer, micro-batch) at a time. Owns the
// workspace that all of them share; allocates nothing after construction but small index vectors.
#include <optional>
#include <span>
#include <vector>

#include "kernels/norm.h"
#include "src/device/emulated_device.h"
#include "src/engine/runners/host_compute.h"
#include "src/engine/runners/operator_runner.h"

namespace sluice {

class LayerRunner final : public OperatorRunner {
 public:
  /// `device` (null: the CPU itself) is the emulated one. `workspace` has at least
  /// workspace_bytes() of the same numbers, and so has `host_workspace` where the host computes
  /// beside a device. Errors: none.
  LayerRunner(const RunnerParts& parts, EmulatedDevice* device, std::span<std::byte> workspace,
              std::span<std::byte> host_workspace);

  void run(const Task& task, const MicroBatch& batch, size_t batch_index,
           LogitsConsumer& consumer) override;

 private:
  void gather_tokens(const Operator& op, Rows out) override;
  void gather_positions(const Operator& op, Rows out) override;
  void set_hidden(Rows in) override;
  void read_hidden(Rows out) override;
  void norm_hidden(const Operator& op, Rows in, Rows out) override;
  void norm_hidden_in_place(const Operator& op) override;
  void add_to_hidden(Rows in) override;
  void scale_hidden(const Operator& op) override;
  void carry(Rows in) override;
  void read_carried(const Operator& op, Rows out) override;
  void read_needed_hidden(Rows out) override;
  void norm(const Operator& op, Rows in_out) override;
  void add(Rows in_out, Rows in) override;
  void linear(const Operator& op, Rows in, Rows out) override;
  void scale(const Operator& op, Rows in_out) override;
  void clamp(const Operator& op, Rows in_out) override;
  void scale_by_position(const Operator& op, Rows in_out) override;
  void scale_columns(const Operator& op, Rows in_out) override;
  void regroup(const Operator& op, Rows in, Rows out) override;
  void take_heads(const Operator& op, Rows in, Rows out) override;
  void absorb(const Operator& op, Rows in, Rows out) override;
  void expand(const Operator& op, Rows in, Rows out) override;
  void convolve(const Operator& op, Rows in, Rows out) override;
  void time_steps(const Operator& op, Rows in_out) override;
  void decay(const Operator& op, Rows steps, Rows out) override;
  void recurrent_rule(const Operator& op, Rows qkv, Rows learned, Rows kept, Rows out) override;
  void rope(const Operator& op, Rows in_out) override;
  void attend(const Operator& op, Rows q, Rows k, Rows v, Rows kept, Rows out) override;
  void add_weighted(Rows in_out, Rows in, Rows by) override;
  void add_low_rank(const Operator& op, Rows in, Rows out) override;
  void activate(const Operator& op, Rows in_out) override;
  void gate(const Operator& op, Rows gate, Rows up, Rows out) override;
  void logits(const Operator& op, Rows in) override;

  const float* host_vector(int32_t weight, int64_t) override { return vector_or_null(weight); }
  const float* on_host(const float* values, int64_t, std::vector<float>&) override {
    return values;
  }
  RoutedLists routed_lists(std::span<const int32_t> rows, std::span<const float> weights) override {
    return {rows.data(), weights.data()};
  }
  void clear(const Rows& out) override;
  void gather_routed(const Rows& in, const int32_t* ids, const Rows& out) override;
  void keep_answer(const Rows& y, float* to) override;
  void multiply_expert(const MatrixView& matrix, const Rows& in, const float* bias,
                       const Rows& out) override;
  void gate_clamped(const ClampedGate& clamp, const float* biases, const Rows& gate,
                    const Rows& up) override;
  void add_routed(const Rows& in, const RoutedLists& to, const Rows& out) override;
  bool guesses() const noexcept override { return true; }
  HostCompute& host() noexcept override { return host_; }
  void begin_down(const Rows& in, float* to) override;
  void end_down() override { wait_until(down_arrives_); }
  void bring_up(const Rows& from, float* to) override;
  void await_up() override {}
  void end_host_experts(Clock::time_point begin, double flops) override;

  /// What adapters of rows [begin, begin + out.rows) add to a weight's product with `in`, or to
  /// rows of a table.
  void add_changes_of(int32_t weight, int64_t begin, const int32_t* ids, Rows in, Rows out,
                      const float* bias);
  void gather(const Operator& op, std::span<const int32_t> ids, Rows out);
  void apply_norm(const Operator& op, const float* x, float* y, int64_t rows, int64_t cols,
                  const kernels::AfterNorm& after = {}) const;
  /// Makes int8 rows of `rows` as they are written, where op.codes_for takes them so.
  std::optional<kernels::RowPreparer> preparer_for(const Operator& op, const Rows& rows);
  kernels::Activations activations(Rows in, const WeightFormat& format, InputCopy narrow);
  /// `is_prepared`: areas_.linear has what such a product makes of its input.
  void multiply(const MatrixView& view, Rows in, InputCopy narrow, bool is_prepared,
                const float* bias, float* y, int64_t ldy);
  void multiply_inplace(const MatrixView& view, const kernels::Activations& x, const float* bias,
                        float* y, int64_t ldy, Link::Clock::time_point input_arrives);
  void attend_on_device(const kernels::AttentionShape& shape, Rows q, Rows k, Rows v, Rows out);
  void attend_with_recent_kv(const kernels::AttentionShape& shape,
                             std::span<const kernels::AttentionSequence> sequences, Rows k, Rows v);

  EmulatedDevice* device_;
  WorkspaceAreas areas_;
  HostCompute host_;
  KernelWatch watch_;
  double device_flops_ = 0;
  Link::Clock::time_point down_arrives_;
  std::vector<int32_t> ids_;
};

}  // namespace sluice
