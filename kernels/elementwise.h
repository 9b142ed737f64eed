#pragma once
// Elementwise operators and conversions on f32 rows. All run on the calling thread's team when
// there is enough to do.
#include <cmath>
#include <cstdint>

#include "src/base/activation.h"
#include "src/base/dtype.h"

namespace sluice::kernels {

/// y[i] += x[i]; n elements; x and y equal or disjoint.
void add_inplace(float* y, const float* x, int64_t n) noexcept;
/// activation(x) in place, n elements.
void activate(Activation activation, float* x, int64_t n) noexcept;
/// y = activation(gate) * up, [rows, cols], each with its row stride in floats; y may be gate or
/// up.
void gated(Activation activation, const float* gate, int64_t gate_stride, const float* up,
           int64_t up_stride, float* y, int64_t y_stride, int64_t rows, int64_t cols) noexcept;
/// How clamped_gate() gates: of g = min(gate + its bias, limit) and u = clamp(up + its bias,
/// -limit, limit) it makes (u + 1) g sigmoid(alpha g) (gpt-oss).
struct ClampedGateShape {
  float limit = 0;
  float alpha = 0;
  const float* biases = nullptr;  ///< [2 cols], gate's and up's by turns; null: none
};
/// y [rows, cols], each with its row stride in floats; y may be gate or up.
void clamped_gate(const ClampedGateShape& shape, const float* gate, int64_t gate_stride,
                  const float* up, int64_t up_stride, float* y, int64_t y_stride, int64_t rows,
                  int64_t cols) noexcept;
/// x = cap tanh(x / cap), within some roundings of itself.
void soft_cap(float* x, float cap, int64_t n) noexcept;
/// x *= factor.
void scale_inplace(float* x, float factor, int64_t n) noexcept;
/// Each of [rows, cols] (row stride `stride` floats) between -most and most; NaN stays.
void clamp_rows(float* x, int64_t stride, float most, int64_t rows, int64_t cols) noexcept;
/// Each row of x [rows, cols] *= gains [cols], element by element.
void scale_columns(float* x, const float* gains, int64_t rows, int64_t cols) noexcept;

/// 1 + factor ln(1 + floor(position / period)): what queries far in are scaled by (Ministral 3).
inline float position_scale(int32_t position, int64_t period, float factor) noexcept {
  return 1.0f + factor * std::log(1.0f + static_cast<float>(position / period));
}
/// Each of [rows, cols] (row stride `stride` floats) *= position_scale of positions[row].
void scale_by_position(float* x, int64_t stride, const int32_t* positions, int64_t period,
                       float factor, int64_t rows, int64_t cols) noexcept;

/// Rows of fused projections: `groups` times `queries` heads of q, one of k and one of v.
struct HeadGroups {
  int64_t groups = 0;
  int64_t queries = 0;
  int64_t head_dim = 0;
};
/// y = the same columns as q of all groups, then k, then v; y and x are disjoint.
void regroup_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                   const HeadGroups& heads) noexcept;
/// Some heads of rows that have `period` times as many: those whose number is `first` beyond a
/// multiple of `period`.
struct TakenHeads {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t period = 1;
  int64_t first = 0;
};
/// y [rows, heads * head_dim] = these heads of x; y and x are disjoint.
void take_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                const TakenHeads& taken) noexcept;
/// n elements between f32, f16 and bf16, round to nearest even; source at any alignment of its
/// element.
void convert(DType from, const void* source, DType to, void* destination, int64_t n) noexcept;
/// out [count, cols] f32 = rows ids[0 .. count) of table [rows, cols] of `dtype`, at any alignment
/// of its element.
void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out) noexcept;

namespace reference {
void add_inplace(float* y, const float* x, int64_t n);
void activate(Activation activation, float* x, int64_t n);
void gated(Activation activation, const float* gate, int64_t gate_stride, const float* up,
           int64_t up_stride, float* y, int64_t y_stride, int64_t rows, int64_t cols);
void clamped_gate(const ClampedGateShape& shape, const float* gate, int64_t gate_stride,
                  const float* up, int64_t up_stride, float* y, int64_t y_stride, int64_t rows,
                  int64_t cols);
void soft_cap(float* x, float cap, int64_t n);
void scale_inplace(float* x, float factor, int64_t n);
void clamp_rows(float* x, int64_t stride, float most, int64_t rows, int64_t cols);
void scale_columns(float* x, const float* gains, int64_t rows, int64_t cols);
void scale_by_position(float* x, int64_t stride, const int32_t* positions, int64_t period,
                       float factor, int64_t rows, int64_t cols);
void regroup_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                   const HeadGroups& heads);
void take_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                const TakenHeads& taken);
void convert(DType from, const void* source, DType to, void* destination, int64_t n);
void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out);
}  // namespace reference

}  // namespace sluice::kernels
