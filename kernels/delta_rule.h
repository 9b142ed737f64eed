#pragma once
// The operators of the gated delta net (arXiv:2412.06464), f32: a causal convolution over the last
// inputs of each column, and for each value head a matrix S that decays, forgets what it has for a
// key and learns the value anew. Both read what a sequence kept and leave what it keeps
// (src/base/recurrent_shape.h), in one go or in any cuts: the same tokens give the same result to
// within roundings, and the same bits where the cuts are the same.
#include <cstdint>
#include <span>

#include "kernels/state_run.h"
#include "src/base/recurrent_shape.h"

namespace sluice::kernels {

/// y[t, c] = silu(sum over j of weights[c, j] x[t - (taps - 1) + j, c]), where rows before a run
/// are the window it kept; leaves the window. Columns are shape.columns().
///   x, y [rows, columns], row strides in floats, disjoint      weights [columns, taps]
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* x,
                      int64_t x_stride, std::span<const StateRun> runs, float* y,
                      int64_t y_stride) noexcept;

/// x[row, head] = exp(-exp(a_log[head]) softplus(x[row, head] + bias[head])), what a state keeps of
/// itself; softplus(z) = ln(1 + e^z), and z above 20.
///   x [rows, heads], row stride in floats      a_log, bias [heads]
void decay_gates(float* x, int64_t stride, const float* a_log, const float* bias, int64_t rows,
                 int64_t heads) noexcept;

/// What the rule takes, one row a token: qkv [rows, shape.columns()] as queries, keys, values;
/// learned and kept [rows, value_heads], the gates beta and e^g. Strides in floats.
struct DeltaRows {
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* learned = nullptr;
  int64_t learned_stride = 0;
  const float* kept = nullptr;
  int64_t kept_stride = 0;
};
/// For each token and value head, with q and k of its key head made x / sqrt(sum(x^2) + 1e-6) and q
/// divided by sqrt(key_width) besides: S = kept S; S += k (learned (v - k^T S))^T; out = q^T S.
///   out [rows, value_columns], row stride in floats, disjoint from what is read
/// Relative to reading S once a token, 8 floating-point operations an element. Blocks of columns of
/// S stay in the first level of cache for all tokens of a run: a form in larger chunks would do no
/// fewer.
void gated_delta_rule(const RecurrentShape& shape, const DeltaRows& rows,
                      std::span<const StateRun> runs, float* out, int64_t out_stride) noexcept;

namespace reference {
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* x,
                      int64_t x_stride, std::span<const StateRun> runs, float* y, int64_t y_stride);
void decay_gates(float* x, int64_t stride, const float* a_log, const float* bias, int64_t rows,
                 int64_t heads);
void gated_delta_rule(const RecurrentShape& shape, const DeltaRows& rows,
                      std::span<const StateRun> runs, float* out, int64_t out_stride);
}  // namespace reference

}  // namespace sluice::kernels
