#pragma once
// The gated delta rule of some columns of a head's matrix, and the convolution before it.
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
inline void delta_columns(const DeltaCall& call, int64_t token, const float* q, const float* k,
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
    store(call.out + token * call.out_stride + column + j * kLanes,
          add_product(answered[j] * kept, splat(q_k), change[j]));
  }
  for (int64_t i = 0; i < call.key_width; ++i)
    for (int j = 0; j < kVectors; ++j) {
      float* s = matrix + i * call.value_width + column + j * kLanes;
      store(s, add_product(load(s) * kept, splat(k[i]), change[j]));
    }
}

// The same of single columns.
inline void delta_column(const DeltaCall& call, int64_t token, const float* q, const float* k,
                         float q_k, float* matrix, int64_t column) {
  const float kept = call.kept[token * call.kept_stride];
  float known = 0, answered = 0;
  for (int64_t i = 0; i < call.key_width; ++i) {
    known += k[i] * matrix[i * call.value_width + column];
    answered += q[i] * matrix[i * call.value_width + column];
  }
  const float change = (call.v[token * call.stride + column] - known * kept) *
                       call.learned[token * call.learned_stride];
  call.out[token * call.out_stride + column] = answered * kept + q_k * change;
  for (int64_t i = 0; i < call.key_width; ++i) {
    float& s = matrix[i * call.value_width + column];
    s = s * kept + k[i] * change;
  }
}

void delta_rule(const DeltaCall& call, float* matrix) {
  alignas(64) float q[RecurrentShape::kMostKeyWidth];
  alignas(64) float k[RecurrentShape::kMostKeyWidth];
  constexpr int kWide = 4;
  const int64_t end = call.column + call.columns;
  for (int64_t token = 0; token < call.tokens; ++token) {
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

// y[c] = silu(sum over j of weights[j * columns + c] inputs[j][c]).
void conv_silu_row(const float* const* inputs, const float* weights, int64_t taps, float* y,
                   int64_t columns) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    VecF sum = splat(0);
    for (int64_t j = 0; j < taps; ++j)
      sum = add_product(sum, load(weights + j * columns + c), load(inputs[j] + c));
    store(y + c, silu_vec(sum));
  }
  for (; c < columns; ++c) {
    float sum = 0;
    for (int64_t j = 0; j < taps; ++j) sum += weights[j * columns + c] * inputs[j][c];
    y[c] = silu_vec(splat(sum))[0];
  }
}

}  // namespace
}  // namespace sluice::kernels
