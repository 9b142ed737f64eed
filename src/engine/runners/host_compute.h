#pragma once
// What the host computes beside a device: attention over KV that lives below it, and rows of
// matrices at home in host memory. Works in the host's workspace. One thread may attend while
// another multiplies; neither is called twice at a time.
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

 private:
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
