#pragma once
// What the host computes beside a device: attention over KV that lives below it, rows of matrices
// at home in host memory, and experts that lie there whole (host_experts.cc). Works in the host's
// workspace. One thread may attend while another multiplies; neither is called twice at a time.
#include "src/engine/runners/sublayer_runner.h"
#include "src/engine/runners/workspace_areas.h"

namespace sluice {

class HostCompute {
 public:
  /// `workspace`: workspace_bytes() where the plan has the host compute, else anything.
  HostCompute(const RunnerParts& parts, std::span<std::byte> workspace);

  /// A task of the host's compute lane: writes k and v of the exchange's rows and attends with q.
  void attention(const Task& task, const MicroBatch& batch, const StatePlace& at,
                 const kernels::AttentionShape& shape);

  /// Where the rows of x [m, k] have to be put, contiguous, before multiply(): bf16 when the
  /// products take it (`has_bf16`), else f32.
  struct Input {
    float* f32 = nullptr;
    uint16_t* bf16 = nullptr;
  };
  Input input(const MatrixView& view, bool has_bf16) const noexcept;
  /// y [m, view.inplace_rows], contiguous, valid until the next call. `is_head`: rows of logits.
  const float* multiply(const MatrixView& view, int64_t m, const Input& x, const float* bias,
                        bool is_head);

  /// What a micro-batch asks of experts in host memory in one layer: its input [rows, cols] comes
  /// down once, and multiply() is not called until the last answer [.., out_cols] is used.
  struct ExpertLayer {
    int64_t rows;
    int64_t cols;
    int64_t width;  ///< of gate and up
    int64_t out_cols;
  };
  /// Where the input has to be put, contiguous f32.
  float* expert_input(const ExpertLayer& layer) const noexcept;
  /// Where answers may be added up, [rows, out_cols].
  Rows expert_sum(const ExpertLayer& layer) const noexcept;
  /// One expert, whose three matrices are in host memory.
  struct Expert {
    MatrixView gate, up, down;
    std::span<const int32_t> rows;         ///< of the input, that are routed to it
    const float* input_weights = nullptr;  ///< [rows.size()], factors of what goes in; null: none
    const float* gate_biases = nullptr;    ///< [2 width], of a clamped gate; null: none
    const float* down_bias = nullptr;      ///< [out_cols]; null: none
  };
  /// Where its answers go: to where its input was, or apart from all that the next expert writes
  /// before its own answers, which is where expert_sum() is.
  struct AnswerPlace {
    bool is_apart = false;
    std::function<void()> before_write;  ///< called before answers are written
  };
  /// Its answers to these rows, contiguous, gated as `op` says.
  Rows expert(const Operator& op, const ExpertLayer& layer, const Expert& expert,
              const AnswerPlace& at);

 private:
  float* column(int64_t begin) const noexcept;
  Rows answers(const ExpertLayer& layer, int64_t rows, bool is_apart) const noexcept;
  void multiply_expert(const MatrixView& view, const Rows& x, const float* bias, const Rows& y,
                       bool is_prepared);

  RunnerParts parts_;
  WorkspaceAreas areas_;
  KernelWatch watch_;
  std::vector<std::byte*> page_addresses_;
};

/// A chunk's queries, [count, heads, head_dim] from its first row on in q and out, row strides in
/// floats, against its pages.
kernels::AttentionSequence attended_sequence(const Chunk& chunk, std::byte* const* pages,
                                             const float* q, int64_t q_stride, float* out,
                                             int64_t out_stride) noexcept;

/// y [m, rows] = x w^T (+ bias), whatever the format of w. `is_prepared`: as linear_quantised has
/// it.
void multiply_rows(const kernels::Activations& x, const std::byte* w, const WeightFormat& format,
                   int64_t rows, const float* bias, float* y, int64_t ldy,
                   const kernels::QuantisedOptions& compute, std::span<std::byte> scratch,
                   bool is_prepared = false);

}  // namespace sluice
