#pragma once
// Products of 8-bit codes as cuBLASLt makes them (dense_linear.h), for many rows of x: the codes of
// W are put in rows first, its scales and those of x are applied after. Both have one scale a row:
// W is kInt8 or kFp8, x int8_rows.h or fp8_rows.h. Pointers are the device's.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/types.h"
#include "src/base/weight_format.h"

namespace sluice::cuda {

constexpr int64_t kFewestDenseInt8Rows = 256;  ///< of x; an estimate, before any GPU was measured
constexpr int64_t kFewestDenseFp8Rows = 65;    ///< fewer go through linear_quantised()
/// Whether m rows of x are multiplied so, on a device that can.
bool is_dense_codes(const WeightFormat& format, int64_t m, int64_t k) noexcept;

/// The codes of n rows, kInt8's less 128, as they lie in words -> out [padded_rows,
/// padded_columns of k].
void unpack_codes(const std::byte* w, const WeightFormat& format, int64_t n, int64_t k, void* out,
                  Stream stream);

/// Scales of rows of x, `stride` floats apart.
struct TokenScales {
  const float* data = nullptr;
  int64_t stride = 1;
};
/// products [m, n rounded up to 16], 16-byte aligned -> y [m, n] (+ bias).
void scale_products(const int32_t* products, const TokenScales& x, int64_t m, int64_t k,
                    const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
                    float* y, int64_t ldy, Stream stream);
void scale_products(const float* products, const TokenScales& x, int64_t m, int64_t k,
                    const std::byte* w, const WeightFormat& format, int64_t n, const float* bias,
                    float* y, int64_t ldy, Stream stream);

}  // namespace sluice::cuda
