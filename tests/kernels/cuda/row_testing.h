#pragma once
// What tests of operators on rows share.
#include "kernels/cuda/row_copies.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {

inline const RowsShape kShapes[] = {{1, 1, 1},     {1, 7, 7},     {3, 64, 64},    {2, 255, 300},
                                    {5, 257, 257}, {33, 96, 128}, {2, 4099, 4100}};

// The rows of `shape` without what lies between them.
inline std::vector<float> dense(const std::vector<float>& x, const RowsShape& shape) {
  std::vector<float> out;
  for (int64_t row = 0; row < shape.rows; ++row)
    out.insert(out.end(), x.begin() + row * shape.stride,
               x.begin() + row * shape.stride + shape.cols);
  return out;
}

inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                        double relative, double absolute) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], relative * std::fabs(expected[i]) + absolute) << i;
}

// The rounded copy holds y's values, and zeros up to its stride.
inline void expect_rounded(const std::vector<uint16_t>& copy, int64_t stride, DType type,
                           const std::vector<float>& y, const RowsShape& shape) {
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t col = 0; col < stride; ++col) {
      const uint16_t bits = copy[static_cast<size_t>(row * stride + col)];
      if (col >= shape.cols) {
        ASSERT_EQ(bits, 0);
        continue;
      }
      const float value = y[static_cast<size_t>(row * shape.cols + col)];
      ASSERT_EQ(bits, type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value));
    }
}

}  // namespace sluice::cuda
