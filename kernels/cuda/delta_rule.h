#pragma once
// The gated delta net's operators in GPU memory; what each computes is said in
// kernels/delta_rule.h. Pointers are the device's, runs too; strides count elements; calls return
// at once, in the stream's order.
#include "kernels/cuda/types.h"
#include "kernels/state_run.h"
#include "src/base/recurrent_shape.h"

namespace sluice::cuda {

/// Some runs, on the device.
struct StateRuns {
  const kernels::StateRun* data = nullptr;
  int64_t count = 0;
};

/// weights [columns, taps].
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* x,
                      int64_t x_stride, const StateRuns& runs, float* y, int64_t y_stride,
                      Stream stream);

/// x [rows, heads] in place.
void decay_gates(float* x, int64_t stride, const float* a_log, const float* bias, int64_t rows,
                 int64_t heads, Stream stream);

/// As kernels::DeltaRows.
struct DeltaRows {
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* learned = nullptr;
  int64_t learned_stride = 0;
  const float* kept = nullptr;
  int64_t kept_stride = 0;
};
/// A block has some columns of a head's matrix in shared memory for all tokens of its run: the
/// matrix is read and written once a run, and the rest is bound by the block's own steps.
void gated_delta_rule(const RecurrentShape& shape, const DeltaRows& rows, const StateRuns& runs,
                      float* out, int64_t out_stride, Stream stream);

}  // namespace sluice::cuda
