#pragma once
// Rows of x quantised to int8 on the fly, for products with int4 and int8 weights (W4A8, and W8A8
// per token times per channel): symmetric, one scale for each row and group of the weights' columns
// (kernels/quantised_linear.h). A row with a NaN or an infinity in a group has no finite product.
// Pointers are the device's.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dense_codes.h"
#include "kernels/cuda/types.h"
#include "src/base/weight_format.h"

namespace sluice::cuda {

/// Of one group of a row.
struct alignas(8) Int8Scale {
  float scale;       ///< x = scale * code
  float scaled_sum;  ///< scale times the sum of the group's codes: what the zero of W takes away
};

/// Nothing where codes is null.
struct Int8Rows {
  int8_t* codes = nullptr;      ///< [rows, columns]: a line's columns in the order of W's unpacked
                                ///< codes (kernels::unpacked_column); zeros past the row's end
  Int8Scale* scales = nullptr;  ///< [groups, scale_stride]
  int64_t columns = 0;          ///< with padding, of W
  int64_t group_columns = 0;
  int64_t scale_stride = 0;  ///< rows, rounded up to an even number
  bool is_four_bit = false;

  int64_t groups() const noexcept { return columns / group_columns; }
  /// Of rows with one group.
  TokenScales token_scales() const noexcept { return {&scales->scale, 2}; }
};

/// `rows` rows of `cols` columns for products with `format`, in memory aligned to 16 bytes, of
/// int8_rows_bytes().
Int8Rows int8_rows(const WeightFormat& format, int64_t rows, int64_t cols, std::byte* memory);
int64_t int8_rows_bytes(const WeightFormat& format, int64_t rows, int64_t cols) noexcept;

}  // namespace sluice::cuda
