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

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu: return x < 0 ? 0 : x;
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kReluSquared: return x < 0 ? 0 : x * x;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
  }
  return x;
}
}  // namespace

void add_inplace(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void activate(Activation activation, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(activated(activation, x[i]));
}

void gated(Activation activation, const float* gate, int64_t gate_stride, const float* up,
           int64_t up_stride, float* y, int64_t y_stride, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < cols; ++i)
      y[row * y_stride + i] = static_cast<float>(
          activated(activation, gate[row * gate_stride + i]) * up[row * up_stride + i]);
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
      y[row * y_stride + i] =
          static_cast<float>((u + 1) * g * activated(Activation::kSigmoid, shape.alpha * g));
    }
}

void take_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                const TakenHeads& taken) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < taken.heads * taken.head_dim; ++col) {
      const int64_t head = col / taken.head_dim * taken.period + taken.first;
      y[row * y_stride + col] = x[row * x_stride + head * taken.head_dim + col % taken.head_dim];
    }
}

void soft_cap(float* x, float cap, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(cap * std::tanh(double{x[i]} / cap));
}

void scale_inplace(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void clamp_rows(float* x, int64_t stride, float most, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    for (float* at = x + row * stride; at < x + row * stride + cols; ++at)
      if (std::fabs(*at) > most) *at = std::copysign(most, *at);
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
