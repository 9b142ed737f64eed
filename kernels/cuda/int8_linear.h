#pragma once
// y = x W^T (+ bias) with W in int4 or int8 panels (src/base/weight_format.h) and x quantised to
// int8 (int8_rows.h), on the integer tensor cores: products are exact in int32, a group's scales
// are applied to its sum. For any number of rows of x: few are bound by the bytes of W, many by the
// cores. W's codes go from memory to registers and are multiplied as they are. Pointers are the
// device's.
#include "kernels/cuda/int8_rows.h"
#include "kernels/cuda/split_space.h"
#include "kernels/cuda/types.h"
#include "kernels/quantised_layout.h"

namespace sluice::cuda {

/// How the columns of W are shared out: blocks along a row leave partial sums of their own, which
/// the last of them adds up (split_space.h).
struct Int8LinearPlan {
  int splits = 1;
  int64_t split_columns = 0;  ///< whole groups and chunks; the last has what is left
  int64_t workspace_floats = 0;
};
Int8LinearPlan plan_linear_int8(const WeightFormat& format, int64_t m, int64_t n, int64_t k,
                                const Multiprocessors& processors);
/// Blocks of a multiprocessor that the plan counts with.
int linear_int8_blocks(const WeightFormat& format, int64_t m, int64_t k,
                       const Multiprocessors& processors);
/// Of any plan, at most.
int64_t linear_int8_workspace_floats(const Multiprocessors& processors) noexcept;

/// Whether rows of int8 are multiplied with it. K types, with which CPUs do that too, meet rows of
/// 16 bits (quantised_linear.h).
constexpr bool takes_int8_rows(const WeightFormat& format) noexcept {
  return kernels::has_int4_codes(format.encoding) || format.encoding == Encoding::kInt8;
}

/// x: m rows of k columns, quantised for `format`, which takes_int8_rows(). w [n, k] panels,
/// 16-byte aligned. y [m, n] f32, row stride ldy; bias [n] or null.
void linear_int8(const Int8Rows& x, int64_t m, int64_t k, const std::byte* w,
                 const WeightFormat& format, int64_t n, const float* bias, float* y, int64_t ldy,
                 const Int8LinearPlan& plan, const SplitSpace& space, Stream stream);

}  // namespace sluice::cuda
