#pragma once
// y = x W^T (+ bias) with plain weights on the GPU: cuBLASLt with f32 sums (i32 of int8), one
// algorithm chosen for each shape and kept (dense_linear_cuda.cu), or where it has none that runs,
// tiles of our own (plain_linear.h); on the host plain loops
// (shim/host_dense_linear.cc). One stream at a time for one object: they share its workspace.
// Errors: kDevice.
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/types.h"
#include "src/base/dtype.h"

namespace sluice::cuda {

class DenseLinear {
 public:
  /// `workspace` [workspace_bytes()] of device memory, aligned to 256 bytes, must outlive this.
  explicit DenseLinear(std::byte* workspace);
  ~DenseLinear();
  DenseLinear(const DenseLinear&) = delete;
  DenseLinear& operator=(const DenseLinear&) = delete;

  /// Device memory that cuBLASLt may use beside its operands.
  static int64_t workspace_bytes() noexcept;

  /// x [m, k] and w [n, k] row-major of `type` (f32, f16, bf16), row strides ldx and k; y [m, n]
  /// f32, row stride ldy; bias [n] f32 or null.
  void run(DType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w, int64_t n,
           const float* bias, float* y, int64_t ldy, Stream stream);
  /// x [m, k] and w [n, k] of int8, y [m, n] of i32; n and k multiples of 16, all aligned to 16
  /// bytes.
  void run_int8(const int8_t* x, int64_t m, int64_t k, const int8_t* w, int64_t n, int32_t* y,
                Stream stream);
  /// The same with e4m3 codes and y of f32, on a device with DeviceProperties::has_fp8.
  void run_fp8(const uint8_t* x, int64_t m, int64_t k, const uint8_t* w, int64_t n, float* y,
               Stream stream);

  /// What cuBLASLt refused since the last call, in a sentence; empty: nothing.
  std::string take_notice();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cuda
