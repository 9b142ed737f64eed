#pragma once
// The operators of layers with a recurrent state, f32: the gated delta net's (arXiv:2412.06464) and
// Mamba-2's (arXiv:2405.21060). A causal convolution over the last inputs of each column, and for
// each value head a matrix S that decays and takes in a key and a value. Both read what a sequence
// kept and leave what it keeps (src/base/recurrent_shape.h), in one go or in any cuts: the same
// tokens give the same result to within roundings, and the same bits where the cuts are the same.
#include <cstdint>
#include <span>

#include "kernels/state_run.h"
#include "src/base/recurrent_shape.h"

namespace sluice::kernels {

/// y[t, c] = silu(bias[c] + sum over j of weights[c, j] x[t - (taps - 1) + j, c]), where rows
/// before a run are the window it kept; leaves the window. Columns are shape.columns().
///   x, y [rows, columns], row strides in floats, disjoint      weights [columns, taps]
///   bias [columns], or null
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, std::span<const StateRun> runs, float* y,
                      int64_t y_stride) noexcept;

/// x[row, head] = softplus(x[row, head] + bias[head]), and from `low` to `high`: a token's time
/// steps; softplus(z) = ln(1 + e^z), and z above 20.
///   x [rows, heads], row stride in floats      bias [heads]
void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads) noexcept;

/// kept[row, head] = exp(-exp(a_log[head]) steps[row, head]), what a state keeps of itself.
///   steps, kept [rows, heads], row strides in floats, disjoint or the same      a_log [heads]
void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads) noexcept;

/// What the rule takes, one row a token: qkv [rows, shape.columns()], queries, keys and values in
/// the shape's order; learned and kept [rows, value_heads], the gates beta and e^g, or the time
/// steps and what they leave. skip [value_heads], or null. Strides in floats.
struct RuleRows {
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* learned = nullptr;
  int64_t learned_stride = 0;
  const float* kept = nullptr;
  int64_t kept_stride = 0;
  const float* skip = nullptr;
};
/// The gated delta rule. For each token and value head, with q and k of its key head made x /
/// sqrt(sum(x^2) + 1e-6) and q divided by sqrt(key_width) besides: S = kept S; S += k (learned (v -
/// k^T S))^T; out = q^T S. The state space rule, q and k as they are: S = kept S; S += k (learned
/// v)^T; out = q^T S. To both skip v is added.
///   out [rows, value_columns], row stride in floats, disjoint from what is read
/// Relative to reading S once a token, 8 and 5 floating-point operations an element. Blocks of
/// columns of S stay in the first level of cache for all tokens of a run: a form in larger chunks
/// would do no fewer.
void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows,
                    std::span<const StateRun> runs, float* out, int64_t out_stride) noexcept;

namespace reference {
void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, std::span<const StateRun> runs, float* y,
                      int64_t y_stride);
void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads);
void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads);
void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows,
                    std::span<const StateRun> runs, float* out, int64_t out_stride);
}  // namespace reference

}  // namespace sluice::kernels
