#pragma once
// Rows of x as fp8 activations (kernels/quantised_linear.h): e4m3 codes times a power of two a row.
// Products take the codes where the device multiplies such, else the same values in 16 bits: as
// they are in bf16, over the row's power of two in f16, exact in both. A row with a NaN or an
// infinity has no finite product. Pointers are the device's.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dense_codes.h"
#include "kernels/cuda/row_copies.h"
#include "src/base/weight_format.h"

namespace sluice::cuda {

/// Nothing where codes is null.
struct Fp8Rows {
  uint8_t* codes = nullptr;  ///< [rows, columns]: four columns in the order of W's codes
                             ///< (kernels::byte_column); zeros past the row's end
  float* scales = nullptr;   ///< [rows]
  int64_t columns = 0;       ///< with padding, of W

  TokenScales token_scales() const noexcept { return {scales, 1}; }
};

/// `rows` rows of `cols` columns for products with `format`, in memory aligned to 16 bytes, of
/// fp8_rows_bytes().
Fp8Rows fp8_rows(const WeightFormat& format, int64_t rows, int64_t cols, std::byte* memory);
int64_t fp8_rows_bytes(const WeightFormat& format, int64_t rows, int64_t cols) noexcept;

/// x rounded: its codes, its values in 16 bits (columns up to the stride become zeros), or both.
/// Where `narrow_scales` [rows] is not null, `narrow` has the values over each row's power of two,
/// which `narrow_scales` takes; else f16 loses what is past its range or among its subnormals.
void round_rows_to_fp8(const float* x, const RowsShape& shape, const Fp8Rows& codes,
                       const Rows16& narrow, float* narrow_scales, Stream stream);

}  // namespace sluice::cuda
