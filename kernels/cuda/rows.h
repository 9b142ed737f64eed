#pragma once
// Operators on rows of f32 in GPU memory; what each computes is said in kernels/rope.h and
// elementwise.h. Pointers are the device's; strides count elements; calls return at once, in the
// stream's order. Bound by memory: each reads and writes its rows once.
#include "kernels/cuda/row_copies.h"
#include "kernels/elementwise.h"
#include "src/base/activation.h"
#include "src/base/rope_layout.h"

namespace sluice::cuda {

/// Makes the copies of x, nothing else.
void copy_rows_for_products(const float* x, const RowsShape& shape, const RowCopies& copies,
                            Stream stream);

/// The f16 copy of x whatever its magnitude: each row over a power of two, the smallest that brings
/// it down to 32768, which goes to `scales` [rows]; 1 for a row that is below, or has an infinity.
void copy_scaled_rows(const float* x, const RowsShape& shape, const Rows16& copy, float* scales,
                      Stream stream);
/// What a product makes of such rows, y = x W^T + bias, times their scales; bias [cols] or null.
/// Rows of scale 1 are not touched.
void unscale_products(float* y, const RowsShape& shape, const float* scales, const float* bias,
                      Stream stream);

/// y += x; both contiguous.
void add_inplace(float* y, const float* x, int64_t n, Stream stream);
/// y += bias in every row.
void add_bias(float* y, const float* bias, const RowsShape& shape, Stream stream);

/// Of rows that are scaled by position.
struct RowPositions {
  const int32_t* positions = nullptr;  ///< [rows], on the device; null: rows are scaled alike
  int32_t shift = 0;                   ///< added to each
  int64_t period = 1;
};
/// x *= factor; where there are positions, position_scale of the row's
/// (kernels/elementwise.h).
void scale_rows(float* x, const RowsShape& shape, float factor, const RowPositions& at,
                Stream stream);
/// x between -most and most; NaN stays.
void clamp_rows(float* x, float most, const RowsShape& shape, Stream stream);
/// x *= gains [cols] in every row.
void scale_columns(float* x, const float* gains, const RowsShape& shape, Stream stream);
/// x = cap tanh(x / cap), n elements.
void soft_cap(float* x, float cap, int64_t n, Stream stream);
/// y = x's columns as q, k and v of all groups, both of one shape (kernels/elementwise.h).
void regroup_heads(const float* x, float* y, const RowsShape& shape,
                   const kernels::HeadGroups& heads, Stream stream);

/// y [shape] = some heads of x's rows (kernels/elementwise.h).
void take_heads(const float* x, int64_t x_stride, float* y, const RowsShape& shape,
                const kernels::TakenHeads& taken, Stream stream);

/// In place. Quantised copies only where can_quantise_slices().
void activate(Activation activation, float* x, const RowsShape& shape, const RowCopies& copies,
              Stream stream);
/// y = activation(gate) * up, all of one shape; y may be gate or up. Copies of y as activate()
/// makes them.
void gated(Activation activation, const float* gate, const float* up, float* y,
           const RowsShape& shape, const RowCopies& copies, Stream stream);
/// y = the clamped gate of both (kernels/elementwise.h), all of one shape; `biases` on the device;
/// y may be gate or up.
void clamped_gate(const kernels::ClampedGateShape& clamp, const float* gate, const float* up,
                  float* y, const RowsShape& shape, Stream stream);
/// Whether several blocks can quantise a row: its groups are small.
bool can_quantise_slices(const Int8Rows& rows) noexcept;

/// x [rows, heads * head_dim]: rotation of the first rotary_dim of each head.
void rope_inplace(float* x, const RowsShape& shape, int heads, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout, Stream stream);

/// out [count, cols] f32 = rows ids[i] + offset of table [.., cols] of `type`.
void gather_rows(const void* table, DType type, int64_t cols, const int32_t* ids, int32_t offset,
                 int64_t count, float* out, Stream stream);

/// y[ids[i]] += weights[i * weight_stride] * x[i], as kernels/route.h has it: x [shape] and rows of
/// y as wide, `y_stride` floats from one to the next.
void add_weighted_rows(const float* x, const RowsShape& shape, const int32_t* ids,
                       const float* weights, int64_t weight_stride, float* y, int64_t y_stride,
                       Stream stream);

}  // namespace sluice::cuda
