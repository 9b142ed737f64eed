#include "kernels/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/variant.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
// Columns of a convolution that a thread takes at a time: their window and weights stay in its
// first level of cache.
constexpr int64_t kConvColumns = 256;
// Of a matrix: with 128 keys 32 KiB, what the first level of cache holds.
constexpr int64_t kDeltaColumns = 64;
constexpr int64_t kShareElements = 1 << 14;

// A block of columns of one run.
void convolve(const RecurrentShape& shape, const float* weights, const float* bias, const float* x,
              int64_t x_stride, const StateRun& run, float* y, int64_t y_stride, int64_t begin,
              int64_t columns) {
  const int64_t before = shape.taps - 1;
  alignas(64) float turned[RecurrentShape::kMostTaps * kConvColumns];
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t j = 0; j < shape.taps; ++j)
      turned[j * columns + c] = weights[(begin + c) * shape.taps + j];
  // What was kept, copied: the run may leave its own in the same place.
  alignas(64) float window[RecurrentShape::kMostTaps * kConvColumns];
  const int64_t at = shape.matrices_floats() + begin;
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t j = 0; j < before; ++j) {
    if (run.from)
      std::memcpy(window + j * columns, run.from + at + j * shape.columns(), bytes);
    else
      std::memset(window + j * columns, 0, bytes);
  }
  // Input t of the run; the window's are those before 0.
  const auto input = [&](int64_t t) -> const float* {
    return t < 0 ? window + (before + t) * columns : x + (run.row + t) * x_stride + begin;
  };
  const Variant& variant = active_variant();
  const float* inputs[RecurrentShape::kMostTaps];
  for (int64_t t = 0; t < run.count; ++t) {
    for (int64_t j = 0; j < shape.taps; ++j) inputs[j] = input(t - before + j);
    variant.conv_silu_row(inputs, turned, bias ? bias + begin : nullptr, shape.taps,
                          y + (run.row + t) * y_stride + begin, columns);
  }
  const auto leave = [&](int64_t tokens, float* state) {
    for (int64_t j = 0; j < before; ++j)
      std::memcpy(state + at + j * shape.columns(), input(tokens - before + j), bytes);
  };
  if (run.kept > 0) leave(run.kept, run.kept_to);
  leave(run.count, run.to);
}

// Columns [begin, begin + columns) of a head's matrix, between states.
void copy_columns(const RecurrentShape& shape, const float* from, float* to, int64_t head,
                  int64_t begin, int64_t columns) {
  if (from == to) return;
  const int64_t first = head * shape.matrix_floats() + begin;
  for (int64_t i = 0; i < shape.key_width; ++i) {
    float* row = to + first + i * shape.value_width;
    if (from)
      std::memcpy(row, from + first + i * shape.value_width, static_cast<size_t>(columns) * 4);
    else
      std::memset(row, 0, static_cast<size_t>(columns) * 4);
  }
}

void apply_rule(const RecurrentShape& shape, const RuleRows& rows, const StateRun& run, float* out,
                int64_t out_stride, int64_t head, int64_t begin, int64_t columns) {
  const int64_t key_head = head * shape.key_heads / shape.value_heads;
  RuleCall call{};
  call.key_width = shape.key_width;
  call.value_width = shape.value_width;
  call.is_delta = shape.is_delta();
  call.q_factor = 1 / std::sqrt(static_cast<float>(shape.key_width));
  call.skip = rows.skip ? rows.skip[head] : 0;
  call.stride = rows.qkv_stride;
  call.kept_stride = rows.kept_stride;
  call.learned_stride = rows.learned_stride;
  call.out_stride = out_stride;
  call.column = begin;
  call.columns = columns;
  const Variant& variant = active_variant();
  const auto go = [&](int64_t first, int64_t tokens) {
    const int64_t row = run.row + first;
    const float* qkv = rows.qkv + row * rows.qkv_stride;
    call.q = qkv + shape.first_query() + key_head * shape.key_width;
    call.k = qkv + shape.first_key() + key_head * shape.key_width;
    call.v = qkv + shape.first_value() + head * shape.value_width;
    call.kept = rows.kept + row * rows.kept_stride + head;
    call.learned = rows.learned + row * rows.learned_stride + head;
    call.out = out + row * out_stride + head * shape.value_width;
    call.tokens = tokens;
    variant.recurrent_rule(call, run.to + head * shape.matrix_floats());
  };
  copy_columns(shape, run.from, run.to, head, begin, columns);
  if (run.kept > 0) {
    go(0, run.kept);
    copy_columns(shape, run.to, run.kept_to, head, begin, columns);
  }
  go(run.kept, run.count - run.kept);
}
}  // namespace

void causal_conv_silu(const RecurrentShape& shape, const float* weights, const float* bias,
                      const float* x, int64_t x_stride, std::span<const StateRun> runs, float* y,
                      int64_t y_stride) noexcept {
  const int64_t blocks = (shape.columns() + kConvColumns - 1) / kConvColumns;
  int64_t rows = 0;
  for (const StateRun& run : runs) rows += run.count;
  const auto all = static_cast<int64_t>(runs.size()) * blocks;
  const int64_t of_one = std::max<int64_t>(rows * shape.columns() / std::max<int64_t>(all, 1), 1);
  deal_each(all, std::max<int64_t>(kShareElements / of_one, 1), [&](int64_t i) {
    const int64_t begin = i % blocks * kConvColumns;
    convolve(shape, weights, bias, x, x_stride, runs[static_cast<size_t>(i / blocks)], y, y_stride,
             begin, std::min(kConvColumns, shape.columns() - begin));
  });
}

void time_steps(float* x, int64_t stride, const float* bias, float low, float high, int64_t rows,
                int64_t heads) noexcept {
  deal_each(rows, 1024 / std::max<int64_t>(heads, 1), [&](int64_t row) {
    for (int64_t head = 0; head < heads; ++head) {
      float& value = x[row * stride + head];
      const float z = value + bias[head];
      const float softplus = z > 20 ? z : std::log1p(std::exp(z));
      value = std::min(std::max(softplus, low), high);
    }
  });
}

void decay_gates(const float* steps, int64_t steps_stride, const float* a_log, float* kept,
                 int64_t kept_stride, int64_t rows, int64_t heads) noexcept {
  deal_each(rows, 1024 / std::max<int64_t>(heads, 1), [&](int64_t row) {
    for (int64_t head = 0; head < heads; ++head)
      kept[row * kept_stride + head] =
          std::exp(-std::exp(a_log[head]) * steps[row * steps_stride + head]);
  });
}

void recurrent_rule(const RecurrentShape& shape, const RuleRows& rows,
                    std::span<const StateRun> runs, float* out, int64_t out_stride) noexcept {
  const int64_t blocks = (shape.value_width + kDeltaColumns - 1) / kDeltaColumns;
  const int64_t of_run = shape.value_heads * blocks;
  deal_each(static_cast<int64_t>(runs.size()) * of_run,
            kShareElements / (kDeltaColumns * shape.key_width) + 1, [&](int64_t i) {
              const int64_t begin = i % blocks * kDeltaColumns;
              apply_rule(shape, rows, runs[static_cast<size_t>(i / of_run)], out, out_stride,
                         i % of_run / blocks, begin,
                         std::min(kDeltaColumns, shape.value_width - begin));
            });
}

}  // namespace sluice::kernels
