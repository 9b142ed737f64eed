// Stands in for cuBLASLt: plain loops, in the stream's order.
#include <cstring>

#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/shim/host_driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "src/base/error.h"

namespace sluice::cuda {

struct DenseLinear::Impl {};

DenseLinear::DenseLinear(std::byte*) {}
DenseLinear::~DenseLinear() = default;
int64_t DenseLinear::workspace_bytes() noexcept { return 256; }
std::string DenseLinear::take_notice() { return {}; }

namespace {
float element(DType type, const void* from, int64_t index) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const std::byte*>(from) + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const std::byte*>(from) + index * 2, 2);
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
}  // namespace

void DenseLinear::run(DType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w,
                      int64_t n, const float* bias, float* y, int64_t ldy, Stream stream) {
  host::enqueue_work(stream, [=] {
    for (int64_t row = 0; row < n; ++row)
      for (int64_t token = 0; token < m; ++token) {
        float sum = bias ? bias[row] : 0.0f;
        for (int64_t i = 0; i < k; ++i)
          sum += element(type, x, token * ldx + i) * element(type, w, row * k + i);
        y[token * ldy + row] = sum;
      }
  });
}

void DenseLinear::run_fp8(const uint8_t* x, int64_t m, int64_t k, const uint8_t* w, int64_t n,
                          float* y, Stream stream) {
  if (host::capability() < 89)
    throw Error(ErrorKind::kDevice, "e4m3 products: no algorithm on this device", "");
  host::enqueue_work(stream, [=] {
    for (int64_t token = 0; token < m; ++token)
      for (int64_t row = 0; row < n; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += e4m3_to_f32(x[token * k + i]) * e4m3_to_f32(w[row * k + i]);
        y[token * n + row] = sum;
      }
  });
}

void DenseLinear::run_int8(const int8_t* x, int64_t m, int64_t k, const int8_t* w, int64_t n,
                           int32_t* y, Stream stream) {
  host::enqueue_work(stream, [=] {
    for (int64_t token = 0; token < m; ++token)
      for (int64_t row = 0; row < n; ++row) {
        int32_t sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += int32_t{x[token * k + i]} * w[row * k + i];
        y[token * n + row] = sum;
      }
  });
}

}  // namespace sluice::cuda
