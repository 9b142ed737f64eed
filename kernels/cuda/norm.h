#pragma once
// Norms of rows of f32 in GPU memory (kernels/norm.h has the formulas), with what stands around
// them done in the same pass: the residual before, the copies for products after. Bound by memory.
#include "kernels/cuda/row_copies.h"

namespace sluice::cuda {

/// x += addend, then y = norm(x) and its copies. All of one shape; y and addend may be one matrix,
/// and y may be x where there is no addend.
struct NormRows {
  float* x = nullptr;
  const float* addend = nullptr;  ///< null: x is only read
  float* y = nullptr;
  RowsShape shape;
  RowCopies copies;
};

/// gain and bias [cols] or null.
void rms_norm(const NormRows& rows, const float* gain, float eps, Stream stream);
void layer_norm(const NormRows& rows, const float* gain, const float* bias, float eps,
                Stream stream);

}  // namespace sluice::cuda
