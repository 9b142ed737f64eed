#pragma once
// The operators of layers with a recurrent state in GPU memory; what each computes is said in
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

/// weights [columns, taps], bias [columns] or null.
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, const StateRuns& runs, float* y,
                      int64_t y_stride, Stream stream);

/// x [rows, heads] in place.
void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads, Stream stream);

/// steps, kept [rows, heads]: the same, or disjoint.
void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads, Stream stream);

/// As kernels::RuleRows.
struct RuleRows {
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* learned = nullptr;
  int64_t learned_stride = 0;
  const float* kept = nullptr;
  int64_t kept_stride = 0;
  const float* skip = nullptr;
};
/// A block has some columns of a head's matrix in shared memory for all tokens of its run: the
/// matrix is read and written once a run, and the rest is bound by the block's own steps.
void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows, const StateRuns& runs,
                    float* out, int64_t out_stride, Stream stream);

}  // namespace sluice::cuda
