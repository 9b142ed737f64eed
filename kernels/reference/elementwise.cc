#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sluice::kernels::reference {

namespace {
float read(DType type, const void* source, int64_t i) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(source) + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(source) + 2 * i, 2);
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void write(DType type, void* to, int64_t i, float value) {
  if (type == DType::kF32) {
    std::memcpy(static_cast<char*>(to) + 4 * i, &value, 4);
    return;
  }
  const uint16_t bits = type == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(static_cast<char*>(to) + 2 * i, &bits, 2);
}

double silu_of(double x) { return x / (1 + std::exp(-x)); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_tanh_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// y = activation(gate) up.
void gate_rows(double (*activation)(double), const float* gate, int64_t gate_stride,
               const float* up, int64_t up_stride, float* y, int64_t y_stride, int64_t rows,
               int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < cols; ++i)
      y[row * y_stride + i] =
          static_cast<float>(activation(gate[row * gate_stride + i]) * up[row * up_stride + i]);
}
}  // namespace

void add_inplace(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void silu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, float* y,
              int64_t y_stride, int64_t rows, int64_t cols) {
  gate_rows(silu_of, gate, gate_stride, up, up_stride, y, y_stride, rows, cols);
}

void gelu_tanh_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                   float* y, int64_t y_stride, int64_t rows, int64_t cols) {
  gate_rows(gelu_tanh_of, gate, gate_stride, up, up_stride, y, y_stride, rows, cols);
}

void sigmoid_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                 float* y, int64_t y_stride, int64_t rows, int64_t cols) {
  gate_rows(sigmoid_of, gate, gate_stride, up, up_stride, y, y_stride, rows, cols);
}

void clamped_gate(const ClampedGateShape& shape, const float* gate, int64_t gate_stride,
                  const float* up, int64_t up_stride, float* y, int64_t y_stride, int64_t rows,
                  int64_t cols) {
  const double limit = shape.limit;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < cols; ++i) {
      double g = gate[row * gate_stride + i], u = up[row * up_stride + i];
      if (shape.biases) {
        g += shape.biases[2 * i];
        u += shape.biases[2 * i + 1];
      }
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
      y[row * y_stride + i] = static_cast<float>((u + 1) * g * sigmoid_of(shape.alpha * g));
    }
}

void sigmoid(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(sigmoid_of(x[i]));
}

void relu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i];
}

void relu_squared(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i] * x[i];
}

void take_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                const TakenHeads& taken) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < taken.heads * taken.head_dim; ++col) {
      const int64_t head = col / taken.head_dim * taken.period + taken.first;
      y[row * y_stride + col] = x[row * x_stride + head * taken.head_dim + col % taken.head_dim];
    }
}

void gelu_erf(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(0.5 * x[i] * (1 + std::erf(x[i] * std::sqrt(0.5))));
}

void gelu_tanh(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(gelu_tanh_of(x[i]));
}

void silu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(silu_of(x[i]));
}

void soft_cap(float* x, float cap, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(cap * std::tanh(double{x[i]} / cap));
}

void scale_inplace(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void scale_columns(float* x, const float* gains, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) x[i] *= gains[i % cols];
}

void scale_by_position(float* x, int64_t stride, const int32_t* positions, int64_t period,
                       float factor, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) {
    const double scale =
        1 + factor * std::log(1 + std::floor(static_cast<double>(positions[row] / period)));
    for (int64_t i = 0; i < cols; ++i)
      x[row * stride + i] = static_cast<float>(x[row * stride + i] * scale);
  }
}

void regroup_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                   const HeadGroups& heads) {
  const int64_t heads_of_group = heads.queries + 2;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads.groups * heads_of_group; ++head) {
      const int64_t group = head / heads_of_group, in_group = head % heads_of_group;
      int64_t to = group * heads.queries + in_group;
      if (in_group == heads.queries) to = heads.groups * heads.queries + group;
      if (in_group == heads.queries + 1) to = heads.groups * (heads.queries + 1) + group;
      for (int64_t d = 0; d < heads.head_dim; ++d)
        y[row * y_stride + to * heads.head_dim + d] = x[row * x_stride + head * heads.head_dim + d];
    }
}

void convert(DType from, const void* source, DType to, void* destination, int64_t n) {
  for (int64_t i = 0; i < n; ++i) write(to, destination, i, read(from, source, i));
}

void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t col = 0; col < cols; ++col)
      out[i * cols + col] = read(dtype, table, ids[i] * cols + col);
}

}  // namespace sluice::kernels::reference
