#pragma once
// Copies of rows that products take, made by the operator that computes the rows: rounded to 16
// bits, quantised to int8, or both. Pointers are the device's.
#include "kernels/cuda/int8_rows.h"
#include "src/base/dtype.h"

namespace sluice::cuda {

/// Rows of f32, `stride` floats apart.
struct RowsShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

/// The same rows rounded to 16 bits: columns from `cols` to `stride` become zeros. Nothing where
/// data is null.
struct Rows16 {
  uint16_t* data = nullptr;
  int64_t stride = 0;
  DType type = DType::kF16;  ///< f16 or bf16
};

struct RowCopies {
  Rows16 narrow;
  Int8Rows int8;
};

}  // namespace sluice::cuda
