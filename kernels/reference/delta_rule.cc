#include "kernels/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::kernels::reference {

namespace {
// A part of a state, zeros where there is none.
std::vector<double> part_of(const float* state, int64_t begin, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count), 0);
  for (int64_t i = 0; state && i < count; ++i) out[static_cast<size_t>(i)] = state[begin + i];
  return out;
}

void leave(const std::vector<double>& part, float* state, int64_t begin) {
  for (size_t i = 0; i < part.size(); ++i)
    state[begin + static_cast<int64_t>(i)] = static_cast<float>(part[i]);
}

std::vector<double> unit(const float* x, int64_t n, double factor) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(x[i] / std::sqrt(sum + 1e-6) * factor);
  return out;
}

// One token of one head.
void step(const RecurrentShape& shape, const RuleRows& rows, int64_t row, int64_t head,
          std::vector<double>& matrix, float* out) {
  const int64_t keys = shape.key_width, values = shape.value_width;
  const int64_t key_head = head * shape.key_heads / shape.value_heads;
  const float* qkv = rows.qkv + row * rows.qkv_stride;
  const float* queries = qkv + shape.first_query() + key_head * keys;
  const float* of_keys = qkv + shape.first_key() + key_head * keys;
  std::vector<double> q(queries, queries + keys), k(of_keys, of_keys + keys);
  if (shape.is_delta()) {
    q = unit(queries, keys, 1 / std::sqrt(static_cast<double>(keys)));
    k = unit(of_keys, keys, 1);
  }
  const float* v = qkv + shape.first_value() + head * values;
  const double kept = rows.kept[row * rows.kept_stride + head];
  const double learned = rows.learned[row * rows.learned_stride + head];
  for (double& element : matrix) element *= kept;
  for (int64_t j = 0; j < values; ++j) {
    const auto at = [&](int64_t i) -> double& {
      return matrix[static_cast<size_t>(i * values + j)];
    };
    double known = 0;
    for (int64_t i = 0; shape.is_delta() && i < keys; ++i)
      known += k[static_cast<size_t>(i)] * at(i);
    const double change = learned * (v[j] - known);
    double sum = rows.skip ? double{rows.skip[head]} * v[j] : 0;
    for (int64_t i = 0; i < keys; ++i) {
      at(i) += k[static_cast<size_t>(i)] * change;
      sum += q[static_cast<size_t>(i)] * at(i);
    }
    out[j] = static_cast<float>(sum);
  }
}
}  // namespace

void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, std::span<const StateRun> runs, float* y,
                      int64_t y_stride) {
  const int64_t columns = shape.columns(), before = shape.taps - 1;
  const int64_t begin = shape.matrices_floats();
  for (const StateRun& run : runs) {
    // The window and then the run's inputs.
    std::vector<double> inputs =
        part_of(run.from ? run.from + begin : nullptr, 0, before * columns);
    for (int64_t t = 0; t < run.count; ++t)
      for (int64_t c = 0; c < columns; ++c) inputs.push_back(x[(run.row + t) * x_stride + c]);
    const auto at = [&](int64_t t, int64_t c) {
      return inputs[static_cast<size_t>(t * columns + c)];
    };
    for (int64_t t = 0; t < run.count; ++t)
      for (int64_t c = 0; c < columns; ++c) {
        double sum = bias ? bias[c] : 0;
        for (int64_t j = 0; j < shape.taps; ++j)
          sum += double{weights[c * shape.taps + j]} * at(t + j, c);
        y[(run.row + t) * y_stride + c] = static_cast<float>(sum / (1 + std::exp(-sum)));
      }
    const auto leave_window = [&](int64_t tokens, float* state) {
      for (int64_t j = 0; j < before; ++j)
        for (int64_t c = 0; c < columns; ++c)
          state[begin + j * columns + c] = static_cast<float>(at(tokens + j, c));
    };
    if (run.kept > 0) leave_window(run.kept, run.kept_to);
    leave_window(run.count, run.to);
  }
}

void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      float& value = x[row * stride + head];
      const double z = double{value} + bias[head];
      const double softplus = z > 20 ? z : std::log1p(std::exp(z));
      value = static_cast<float>(std::min(std::max(softplus, double{low}), double{high}));
    }
}

void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      const double step = steps[row * steps_stride + head];
      kept[row * kept_stride + head] =
          static_cast<float>(std::exp(-std::exp(double{a_log[head]}) * step));
    }
}

void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows,
                    std::span<const StateRun> runs, float* out, int64_t out_stride) {
  const int64_t size = shape.matrix_floats();
  for (const StateRun& run : runs)
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      std::vector<double> matrix = part_of(run.from, head * size, size);
      for (int64_t t = 0; t < run.count; ++t) {
        if (run.kept > 0 && t == run.kept) leave(matrix, run.kept_to, head * size);
        step(shape, rows, run.row + t, head, matrix,
             out + (run.row + t) * out_stride + head * shape.value_width);
      }
      leave(matrix, run.to, head * size);
    }
}

}  // namespace sluice::kernels::reference
