#pragma once
// The operators of LayerOps on the CUDA kernels, for one (sublayer, micro-batch) at a time: queued
// on the compute stream. A task that other lanes wait for (its weights, KV or rows pass through
// rings and slots) is waited for at its end; of a resident model none is, and the host runs ahead
// of the GPU up to the logits. A decode pass of a resident model is recorded as a graph and, when
// another of its kind comes, launched as a whole by its first task; the others then do nothing.
// Programs are fused for it: additions go into norms, rotations into the KV write, copies into what
// writes the rows. Rows are device memory. Attention on the host cuts a sublayer in two walks, as
// in LayerRunner.
#include <map>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/delta_rule.h"
#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/split_space.h"
#include "src/base/team.h"
#include "src/engine/cuda/batch_tables.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/device_areas.h"
#include "src/engine/cuda/device_sampler.h"
#include "src/engine/cuda/pass_graphs.h"
#include "src/engine/runners/host_compute.h"
#include "src/engine/runners/operator_runner.h"

namespace sluice {

class CudaRunner final : public OperatorRunner {
 public:
  /// `workspace` is the device's, of device_workspace_bytes(); `host_workspace` as
  /// Backend::make_runner says. Errors: kDevice.
  CudaRunner(const RunnerParts& parts, CudaDevice& device, std::span<std::byte> workspace,
             std::span<std::byte> host_workspace, bool uses_graphs);
  /// Waits for what an error may have left queued: it works in memory that goes next.
  ~CudaRunner() override;

  void run(const Task& task, const MicroBatch& batch, size_t batch_index,
           LogitsConsumer& consumer) override;

 private:
  CudaRunner(const cuda::DeviceScope& scope, const RunnerParts& parts, CudaDevice& device,
             std::span<std::byte> workspace, std::span<std::byte> host_workspace, bool uses_graphs);

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

  const float* host_vector(int32_t weight, int64_t count) override;
  const float* on_host(const float* values, int64_t count, std::vector<float>& room) override;
  RoutedLists routed_lists(std::span<const int32_t> rows, std::span<const float> weights) override;
  void clear(const Rows& out) override;
  void gather_routed(const Rows& in, const int32_t* ids, const Rows& out) override;
  void keep_answer(const Rows& y, float* to) override;
  void multiply_expert(const MatrixView& matrix, const Rows& in, const float* bias,
                       const Rows& out) override;
  void gate_clamped(const ClampedGate& clamp, const float* biases, const Rows& gate,
                    const Rows& up) override;
  void add_routed(const Rows& in, const RoutedLists& to, const Rows& out) override;
  HostCompute& host() noexcept override { return host_; }
  void begin_down(const Rows& in, float* to) override;
  void end_down() override;
  void bring_up(const Rows& from, float* to) override;
  void await_up() override;
  void end_host_experts(Clock::time_point, double) override {}

  /// Rows ids[i] + offset of a table; `on_device`: the ids there.
  void gather(size_t weight, std::span<const int32_t> ids, const int32_t* on_device, int32_t offset,
              Rows out);
  void gather_below(size_t weight, std::span<const int32_t> ids, int32_t offset, Rows out);
  void apply_norm(const Operator& op, const cuda::NormRows& rows);
  /// Which copies of a product's input are there.
  struct Made {
    bool narrow = false;
    bool codes = false;
    bool is_unscaled = false;  ///< `narrow` was made by a norm
  };
  Made made_of(const Operator& op) const noexcept;
  /// What products with matrices of `format` take: f16 where the matrix is, or the GPU has no bf16.
  DType narrow_type(const WeightFormat& format) const noexcept;
  /// Whether some norm's rows may be beyond f16's range: sqrt(columns) times its gains.
  bool has_large_norms();
  /// The copy of `in` that a product with a matrix of `format` takes, made unless it is there;
  /// `as_fp8`: of its values rounded to fp8 activations.
  struct Narrowed {
    cuda::Rows16 rows;
    const float* scales = nullptr;  ///< of its rows; null: there are none
  };
  Narrowed narrowed(Rows in, const WeightFormat& format, Made& made, bool as_fp8 = false);
  cuda::Fp8Rows fp8_codes(Rows in, const WeightFormat& format, Made& made);
  cuda::Int8Rows quantised(Rows in, const WeightFormat& format, Made& made);
  /// y, which a product has made of `x`, times the scales of its rows.
  void unscale(const Narrowed& x, float* y, const cuda::RowsShape& shape, const float* bias);
  /// y = x W^T (+ bias) with codes: in registers, or where `in` has many rows made plain in slabs.
  void multiply_codes(const cuda::Rows16& x, const Rows& in, const WeightFormat& format,
                      const std::byte* w, int64_t rows, const float* bias, float* y, int64_t ldy);
  cuda::Rows16 narrow_area(int64_t cols, DType type) const noexcept;
  bool multiplies_int8(const WeightFormat& format) const noexcept;
  bool multiplies_fp8(const WeightFormat& format) const noexcept;
  /// What an operator makes of `rows` as it writes them.
  cuda::RowCopies copies_of(const Operator& op, const Rows& rows) const;
  void rotate(const Operator& op, const Rows& rows, int64_t heads);
  void multiply(const MatrixView& view, Rows in, Made made, const float* bias, float* y,
                int64_t ldy);
  int64_t slab_bytes() const noexcept;
  void multiply_rows(const MatrixView& view, Rows in, Made& made, const std::byte* w, int64_t rows,
                     const float* bias, float* y, int64_t ldy);
  cuda::SplitSpace split_space() const noexcept;
  void multiply_int8(const WeightFormat& format, Rows in, Made& made, const std::byte* w,
                     int64_t rows, const float* bias, float* y, int64_t ldy);
  /// The codes of x and W in a dense product, of int8 or fp8.
  void multiply_dense_codes(const WeightFormat& format, Rows in, Made& made, const std::byte* w,
                            int64_t rows, const float* bias, float* y, int64_t ldy);
  /// Of a layer with a recurrent state.
  cuda::StateRuns runs_on_device();
  void attend_on_device(const Operator& op, Rows q, Rows k, Rows v, Rows out);
  void keep_sinks_for_host(const Operator& op);

  /// The largest rank of what adapters of the rows at hand add to a weight; 0: nothing.
  int64_t most_rank(size_t sublayer, size_t weight) const;
  /// What adapters add to a weight's product with `in`, or without it to rows of a table, whose
  /// first is row `begin` of those at hand.
  void add_changes_of(const Operator& op, int64_t begin, Rows in, Rows out);

  /// All weights, KV and rows are on the device.
  bool is_resident() const;
  /// A task of another micro-batch, or of a new pass.
  void begin_batch();
  bool may_be_graph() const;
  /// What launches of a graph depend on where rows have adapters.
  std::vector<int64_t> adapters_kind();
  /// After the head of a pass that is recorded or replayed.
  void finish_graph(size_t batch_index);
  bool shares_pages() const noexcept;
  /// On the device for good: what a family computes once.
  const float* constant(std::span<const float> values);

  /// Hands over the rows of one part of the logits, of which the first is needed row `first`.
  void hand_over(float* logits, int64_t first, int64_t rows, int64_t vocab_size);
  /// The rows of that part that are wanted without logits.
  void hand_hidden_over(const Rows& in, int64_t first);

  /// Until all that is queued has run.
  void settle_stream();
  /// The same, and tables are empty again.
  void wait_for_stream();
  cuda::Stream stream() const noexcept { return device_.compute_stream(); }

  CudaDevice& device_;
  DeviceNeed need_;
  DeviceAreas areas_;
  StagingAreas staging_;
  HostCompute host_;
  std::optional<Team> lane_team_;  // of the host's lane, whose thread is not the other tasks'
  cuda::DenseLinear dense_;
  DeviceSampler sampler_;
  // Where the host computes and copies beside the device, who waits for it leaves its core to that.
  cuda::Waiting waiting_;
  struct Events {
    explicit Events(cuda::Waiting waiting)
        : input_is_down(waiting), queued_is_done(waiting), is_up(waiting) {}
    cuda::Event input_is_down;
    cuda::Event queued_is_done;
    cuda::Event is_up;  ///< what the host's experts have answered
  } events_;
  /// Whether copies in f16 are scaled row by row even where a norm has written the rows; known when
  /// the weights are there.
  std::optional<bool> scales_norms_;
  BatchTables tables_;
  const MicroBatch* tables_of_ = nullptr;
  std::vector<std::optional<AttentionTables>> attention_;  // by group, that all its layers share
  // What the host has of vectors, by where they are on the device. Sinks have their places from the
  // beginning, since its lane reads them, and are empty until they are kept.
  struct HostVectors {
    std::map<const float*, std::vector<float>> others, sinks;
  };
  HostVectors host_vectors_;
  std::vector<std::pair<const float*, const float*>> constants_;  // where they are on both sides
  PassGraphs graphs_;
  PassGraphs::Step step_ = PassGraphs::Step::kRun;
  std::vector<Task> recorded_;
};

}  // namespace sluice
