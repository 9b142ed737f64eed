// Dense products on the device against the reference: cuBLASLt's layouts are what is tried here.
#include "kernels/cuda/dense_linear.h"

#include "kernels/linear.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using kernels::Random;

TEST(CudaDenseLinear, AgreesWithTheReference) {
  const DeviceMemory workspace(DenseLinear::workspace_bytes());
  DenseLinear product(workspace.data());
  struct Shape {
    int64_t m, n, k, ldx, ldy;
  };
  uint32_t seed = 1;
  for (const Shape& s : {Shape{1, 8, 16, 16, 8}, Shape{3, 17, 33, 40, 20},
                         Shape{70, 96, 64, 64, 96}, Shape{16, 130, 257, 264, 132}})
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (const bool has_bias : {true, false}) {
        if (type == DType::kBF16 && !first_device().has_bf16) continue;
        Random random(seed++);
        SCOPED_TRACE(random.trace() + " " + std::string(dtype_name(type)));
        const auto x = kernels::rounded_to(type, random.normal(s.m * s.ldx));
        const auto w = kernels::rounded_to(type, random.normal(s.n * s.k));
        const auto bias = random.normal(s.n);
        DeviceArray<std::byte> dx(kernels::stored_as(type, x)), dw(kernels::stored_as(type, w));
        DeviceArray<float> db(bias), y(static_cast<size_t>(s.m * s.ldy));
        product.run(type, dx.data(), s.ldx, s.m, s.k, dw.data(), s.n,
                    has_bias ? db.data() : nullptr, y.data(), s.ldy, nullptr);
        std::vector<float> expected(y.size());
        kernels::reference::linear({x.data(), nullptr, s.m, s.k, s.ldx}, w.data(), DType::kF32, s.n,
                                   s.k, has_bias ? bias.data() : nullptr, expected.data(), s.ldy,
                                   kernels::Compute::kF32);
        const auto got = y.values();
        const double allowed = 4 * kernels::sum_error(s.k) * 4 * std::sqrt(double(s.k)) + 1e-5;
        for (int64_t row = 0; row < s.m; ++row)
          for (int64_t col = 0; col < s.n; ++col) {
            const auto i = static_cast<size_t>(row * s.ldy + col);
            ASSERT_NEAR(got[i], expected[i], allowed) << row << " " << col;
          }
      }
}

}  // namespace
}  // namespace sluice::cuda
