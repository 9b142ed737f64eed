#include "kernels/elementwise.h"

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
}  // namespace

void add_inplace(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void silu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, float* y,
              int64_t y_stride, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < cols; ++i)
      y[row * y_stride + i] =
          static_cast<float>(silu_of(gate[row * gate_stride + i]) * up[row * up_stride + i]);
}

void relu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i];
}

void gelu_erf(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(0.5 * x[i] * (1 + std::erf(x[i] * std::sqrt(0.5))));
}

void gelu_tanh(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    x[i] = static_cast<float>(0.5 * v *
                              (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
  }
}

void silu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(silu_of(x[i]));
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
