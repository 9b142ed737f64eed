#pragma once
// Elementwise operators and conversions on f32 rows. All run on the calling thread's team when
// there is enough to do.
#include <cstdint>

#include "src/base/dtype.h"

namespace sluice::kernels {

/// y[i] += x[i]; n elements; x and y equal or disjoint.
void add_inplace(float* y, const float* x, int64_t n) noexcept;
/// y = silu(gate) * up, [rows, cols], each with its row stride in floats; y may be gate or up.
void silu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, float* y,
              int64_t y_stride, int64_t rows, int64_t cols) noexcept;
/// In place. gelu_erf is the exact form, gelu_tanh the approximation; silu(x) = x / (1 + e^-x).
void relu(float* x, int64_t n) noexcept;
void gelu_erf(float* x, int64_t n) noexcept;
void gelu_tanh(float* x, int64_t n) noexcept;
void silu(float* x, int64_t n) noexcept;
/// n elements between f32, f16 and bf16, round to nearest even; source at any alignment of its
/// element.
void convert(DType from, const void* source, DType to, void* destination, int64_t n) noexcept;
/// out [count, cols] f32 = rows ids[0 .. count) of table [rows, cols] of `dtype`, at any alignment
/// of its element.
void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out) noexcept;

namespace reference {
void add_inplace(float* y, const float* x, int64_t n);
void silu_mul(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, float* y,
              int64_t y_stride, int64_t rows, int64_t cols);
void relu(float* x, int64_t n);
void gelu_erf(float* x, int64_t n);
void gelu_tanh(float* x, int64_t n);
void silu(float* x, int64_t n);
void convert(DType from, const void* source, DType to, void* destination, int64_t n);
void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out);
}  // namespace reference

}  // namespace sluice::kernels
