#pragma once
// Operators on rows of f32 in GPU memory; what each computes is said in kernels/norm.h, rope.h and
// elementwise.h. Pointers are the device's; strides count elements; calls return at once, in the
// stream's order. Bound by memory: each reads and writes its rows once.
#include "kernels/cuda/types.h"
#include "src/base/dtype.h"

namespace sluice::cuda {

struct RowsShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

/// The same rows rounded to 16 bits, for matrix products: columns from `cols` to `stride` become
/// zeros. Nothing where data is null.
struct Rows16 {
  uint16_t* data = nullptr;
  int64_t stride = 0;
  DType type = DType::kF16;  ///< f16 or bf16
};

/// x [rows, cols] -> y, of the same stride, equal to x or disjoint; gain and bias [cols] or null.
void rms_norm(const float* x, const float* gain, float eps, float* y, const RowsShape& shape,
              const Rows16& copy, Stream stream);
void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                const RowsShape& shape, const Rows16& copy, Stream stream);
/// Rounds only.
void round_rows(const float* x, const RowsShape& shape, const Rows16& copy, Stream stream);

/// y += x; both contiguous.
void add_inplace(float* y, const float* x, int64_t n, Stream stream);
/// y += bias in every row.
void add_bias(float* y, const float* bias, const RowsShape& shape, Stream stream);

enum class RowActivation : uint8_t { kRelu, kGeluErf, kGeluTanh, kSilu };
void activate(RowActivation activation, float* x, int64_t n, Stream stream);
/// y = silu(gate) * up, all of one shape; y may be gate or up.
void silu_mul(const float* gate, const float* up, float* y, const RowsShape& shape, Stream stream);

/// x [rows, heads * head_dim]: half-split rotation of the first rotary_dim of each head.
void rope_inplace(float* x, const RowsShape& shape, int heads, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  Stream stream);

/// out [count, cols] f32 = rows ids[i] + offset of table [.., cols] of `type`.
void gather_rows(const void* table, DType type, int64_t cols, const int32_t* ids, int32_t offset,
                 int64_t count, float* out, Stream stream);

}  // namespace sluice::cuda
