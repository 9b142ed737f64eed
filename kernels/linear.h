#pragma once
// Linear layers y = x W^T (+ bias) on weights as a checkpoint stores them: [n, k] row-major, at any
// address that one element may have, so that they can be computed on as they arrive. All products
// run on our own kernels but large bf16 ones on AMX, which go to oneDNN: its first call with a new
// shape makes a primitive (milliseconds), later ones find it.
// They run on the calling thread's team (src/base/team.h).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/sum_order.h"
#include "src/base/dtype.h"

namespace sluice::kernels {

/// What products are computed in.
enum class Compute : uint8_t {
  kF32,  ///< weights of any type converted exactly, f32 products and sums
  kBF16  ///< bf16 weights, x rounded to bf16, f32 sums
};

/// True when the CPU multiplies bf16 faster than f32 (AVX512-BF16, AMX or ARM's BF16).
bool bf16_compute_supported();
/// Whether products in bf16 know SumOrder::kByRow: those of ARM's BF16 do not. f32 ones do.
bool bf16_sums_by_row();

/// Rows are kept and streamed in multiples of this (the last run of a matrix may be
/// shorter).
constexpr int64_t kRowGranule = 64;

/// x [m, k] f32, row stride ld. `bf16`: the same values rounded, row stride ld too; needed for
/// Compute::kBF16.
struct Activations {
  const float* f32 = nullptr;
  const uint16_t* bf16 = nullptr;
  int64_t m = 0;
  int64_t k = 0;
  int64_t ld = 0;
};

/// x and y must have memory for this many rows: kernels may read and write whole row blocks. Rows
/// past m hold nothing.
int64_t padded_rows(int64_t m) noexcept;

/// y [m, n] f32, row stride ldy = x W^T + bias.   w [n, k] of `dtype`   bias [n] f32 or null
/// `scratch`: linear_scratch_bytes(). f32: relative error of a k-term f32 sum; bf16: products
/// exact, f32 sums.
void linear(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
            const float* bias, float* y, int64_t ldy, Compute compute, std::span<std::byte> scratch,
            SumOrder order = SumOrder::kFastest);

/// Scratch that linear() needs for up to max_m rows of x; more threads than processors share it.
int64_t linear_scratch_bytes(DType dtype, int64_t max_m, int64_t n, int64_t k, Compute compute,
                             SumOrder order = SumOrder::kFastest);

/// "bf16: amx up to 64 rows, oneDNN brg:avx512_core_amx_bf16 above; f32: avx512_bf16".
std::string describe_linear();

namespace reference {
/// The plainest f32 (f64 sums): the specification of linear().
void linear(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
            const float* bias, float* y, int64_t ldy, Compute compute);
}  // namespace reference

}  // namespace sluice::kernels
