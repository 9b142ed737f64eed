#pragma once
// y = x W^T (+ bias) with W in quantised panels (src/base/weight_format.h, the same bytes as on the
// CPU) and x in 16 bits, on tensor cores. For few rows of x the codes go from memory to registers
// and become 16-bit integers there, exact; a group's scale is applied to its f32 sum. Bound by the
// bytes of W. For many rows the panels are dequantised to 16 bits and multiplied by a dense product
// (blas.h). Pointers are the device's.
#include <cstdint>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/split_space.h"
#include "kernels/cuda/types.h"
#include "src/base/weight_format.h"

namespace sluice::cuda {

/// Rows of x that linear_quantised takes.
constexpr int64_t kFewestDenseRows = 65;

/// How the columns of W are shared out: blocks along a row leave partial sums of their own, which
/// the last of them adds up (split_space.h).
struct LinearPlan {
  int splits = 1;
  int64_t split_columns = 0;  ///< whole groups and chunks; the last has what is left
  int64_t workspace_floats = 0;
};
LinearPlan plan_linear_quantised(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                 const Multiprocessors& processors);
/// Blocks of a multiprocessor that the plan counts with.
int linear_blocks(const WeightFormat& format, int64_t m, int64_t k,
                  const Multiprocessors& processors);
/// Most workspace of any plan for up to m rows.
int64_t linear_workspace_floats(int64_t m, const Multiprocessors& processors) noexcept;

/// x [m, k] 16 bits, m < kFewestDenseRows: columns from k to its stride are zeros, the stride a
/// multiple of 8 and at least format.padded_columns(k); 16-byte aligned. w [n, k] panels, 16-byte
/// aligned. y [m, n] f32, row stride ldy; bias [n] or null. The result is that of dequantising and
/// multiplying, within f32 rounding.
void linear_quantised(const Rows16& x, int64_t m, int64_t k, const std::byte* w,
                      const WeightFormat& format, int64_t n, const float* bias, float* y,
                      int64_t ldy, const LinearPlan& plan, const SplitSpace& space, Stream stream);

/// Rows of panels -> out [n, k] of 16 bits, row-major, row stride ld; each value rounded once.
void dequantise(const std::byte* w, const WeightFormat& format, int64_t n, int64_t k, DType type,
                uint16_t* out, int64_t ld, Stream stream);

}  // namespace sluice::cuda
