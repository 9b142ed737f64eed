#pragma once
// The recurrent rules of some columns of a head's matrix, and the convolution before them.
#include "kernels/cpu/generic/rows.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

// x / sqrt(sum(x^2) + 1e-6) * factor.
inline void unit_row(const float* x, float factor, float* y, int64_t n) {
  VecF sums = splat(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums = add_product(sums, load(x + i), load(x + i));
  float sum = sum_lanes(sums);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = factor / __builtin_sqrtf(sum + 1e-6f);
  for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, load(x + i) * scale);
  for (; i < n; ++i) y[i] = x[i] * scale;
}

// One token: q^T (kept S + k change^T) = kept q^T S + (q^T k) change, so that S is read once for
// what it knows and once to be written. kVectors vectors of columns.
template <int kVectors>
inline void delta_columns(const RuleCall& call, int64_t token, const float* q, const float* k,
                          float q_k, float* matrix, int64_t column) {
  const float kept = call.kept[token * call.kept_stride];
  const float learned = call.learned[token * call.learned_stride];
  const float* v = call.v + token * call.stride + column;
  VecF known[kVectors], answered[kVectors];
  for (int j = 0; j < kVectors; ++j) known[j] = answered[j] = splat(0);
  for (int64_t i = 0; i < call.key_width; ++i)
    for (int j = 0; j < kVectors; ++j) {
      const VecF s = load(matrix + i * call.value_width + column + j * kLanes);
      known[j] = add_product(known[j], splat(k[i]), s);
      answered[j] = add_product(answered[j], splat(q[i]), s);
    }
  VecF change[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    change[j] = (load(v + j * kLanes) - known[j] * kept) * learned;
    const VecF skipped = load(v + j * kLanes) * call.skip;
    store(call.out + token * call.out_stride + column + j * kLanes,
          add_product(add_product(skipped, answered[j], splat(kept)), splat(q_k), change[j]));
  }
  for (int64_t i = 0; i < call.key_width; ++i)
    for (int j = 0; j < kVectors; ++j) {
      float* s = matrix + i * call.value_width + column + j * kLanes;
      store(s, add_product(load(s) * kept, splat(k[i]), change[j]));
    }
}

// The same of single columns.
inline void delta_column(const RuleCall& call, int64_t token, const float* q, const float* k,
                         float q_k, float* matrix, int64_t column) {
  const float kept = call.kept[token * call.kept_stride];
  float known = 0, answered = 0;
  for (int64_t i = 0; i < call.key_width; ++i) {
    known += k[i] * matrix[i * call.value_width + column];
    answered += q[i] * matrix[i * call.value_width + column];
  }
  const float value = call.v[token * call.stride + column];
  const float change = (value - known * kept) * call.learned[token * call.learned_stride];
  call.out[token * call.out_stride + column] = call.skip * value + answered * kept + q_k * change;
  for (int64_t i = 0; i < call.key_width; ++i) {
    float& s = matrix[i * call.value_width + column];
    s = s * kept + k[i] * change;
  }
}

// A token of a state space: S is read and written once. kVectors vectors of columns.
template <int kVectors>
inline void space_columns(const RuleCall& call, int64_t token, float* matrix, int64_t column) {
  const float kept = call.kept[token * call.kept_stride];
  const float learned = call.learned[token * call.learned_stride];
  const float* q = call.q + token * call.stride;
  const float* k = call.k + token * call.stride;
  const float* v = call.v + token * call.stride + column;
  VecF change[kVectors], sum[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    const VecF value = load(v + j * kLanes);
    change[j] = value * learned;
    sum[j] = value * call.skip;
  }
  for (int64_t i = 0; i < call.key_width; ++i)
    for (int j = 0; j < kVectors; ++j) {
      float* s = matrix + i * call.value_width + column + j * kLanes;
      const VecF next = add_product(load(s) * kept, splat(k[i]), change[j]);
      store(s, next);
      sum[j] = add_product(sum[j], splat(q[i]), next);
    }
  for (int j = 0; j < kVectors; ++j)
    store(call.out + token * call.out_stride + column + j * kLanes, sum[j]);
}

// The same of single columns.
inline void space_column(const RuleCall& call, int64_t token, float* matrix, int64_t column) {
  const float kept = call.kept[token * call.kept_stride];
  const float* q = call.q + token * call.stride;
  const float* k = call.k + token * call.stride;
  const float value = call.v[token * call.stride + column];
  const float change = value * call.learned[token * call.learned_stride];
  float sum = value * call.skip;
  for (int64_t i = 0; i < call.key_width; ++i) {
    float& s = matrix[i * call.value_width + column];
    s = s * kept + k[i] * change;
    sum += q[i] * s;
  }
  call.out[token * call.out_stride + column] = sum;
}

void recurrent_rule(const RuleCall& call, float* matrix) {
  alignas(64) float q[RecurrentShape::kMostKeyWidth];
  alignas(64) float k[RecurrentShape::kMostKeyWidth];
  constexpr int kWide = 4;
  const int64_t end = call.column + call.columns;
  for (int64_t token = 0; token < call.tokens; ++token) {
    if (!call.is_delta) {
      int64_t column = call.column;
      for (; column + kWide * kLanes <= end; column += kWide * kLanes)
        space_columns<kWide>(call, token, matrix, column);
      for (; column + kLanes <= end; column += kLanes)
        space_columns<1>(call, token, matrix, column);
      for (; column < end; ++column) space_column(call, token, matrix, column);
      continue;
    }
    unit_row(call.q + token * call.stride, call.q_factor, q, call.key_width);
    unit_row(call.k + token * call.stride, 1, k, call.key_width);
    float q_k = 0;
    for (int64_t i = 0; i < call.key_width; ++i) q_k += q[i] * k[i];
    int64_t column = call.column;
    for (; column + kWide * kLanes <= end; column += kWide * kLanes)
      delta_columns<kWide>(call, token, q, k, q_k, matrix, column);
    for (; column + kLanes <= end; column += kLanes)
      delta_columns<1>(call, token, q, k, q_k, matrix, column);
    for (; column < end; ++column) delta_column(call, token, q, k, q_k, matrix, column);
  }
}

// y[c] = silu(bias[c] + sum over j of weights[j * columns + c] inputs[j][c]).
void conv_silu_row(const float* const* inputs, const float* weights, const float* bias,
                   int64_t taps, float* y, int64_t columns) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    VecF sum = bias ? load(bias + c) : splat(0);
    for (int64_t j = 0; j < taps; ++j)
      sum = add_product(sum, load(weights + j * columns + c), load(inputs[j] + c));
    store(y + c, silu_vec(sum));
  }
  for (; c < columns; ++c) {
    float sum = bias ? bias[c] : 0;
    for (int64_t j = 0; j < taps; ++j) sum += weights[j * columns + c] * inputs[j][c];
    y[c] = silu_vec(splat(sum))[0];
  }
}

}  // namespace
}  // namespace sluice::kernels
