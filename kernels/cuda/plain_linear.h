#pragma once
// y = x W^T (+ bias) by plain tiles, for products that cuBLASLt has no algorithm for: slow, right
// for any shape and alignment. Pointers are the device's; calls return at once.
#include <cstdint>

#include "kernels/cuda/types.h"

namespace sluice::cuda {

/// Type of x and w.
enum class PlainType : uint8_t { kF32, kF16, kBF16, kE4M3, kInt8 };

/// x [m, k] and w [n, k] row-major of `type`, row strides ldx and k; y [m, n] of f32 (i32 of
/// kInt8), row stride ldy; bias [n] f32 or null, none with kInt8.
void plain_linear(PlainType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w,
                  int64_t n, const float* bias, void* y, int64_t ldy, Stream stream);

}  // namespace sluice::cuda
