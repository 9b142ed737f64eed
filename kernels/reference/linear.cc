#include "kernels/linear.h"

#include "kernels/elementwise.h"

namespace sluice::kernels::reference {

void linear(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k,
            const float* bias, float* y, int64_t ldy, Compute compute) {
  const auto* bytes = static_cast<const char*>(w);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t i = 0; i < x.m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) {
        float weight;
        convert(dtype, bytes + (row * k + j) * dtype_bytes(dtype), DType::kF32, &weight, 1);
        const float value =
            compute == Compute::kBF16 ? bf16_to_f32(x.bf16[i * x.ld + j]) : x.f32[i * x.ld + j];
        sum += double{weight} * value;
      }
      y[i * ldy + row] = static_cast<float>(sum + (bias ? bias[row] : 0));
    }
}

}  // namespace sluice::kernels::reference
