// Products by plain tiles against the plain formula.
#include "kernels/cuda/plain_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using kernels::Random;

struct Shape {
  int64_t m, n, k, ldx, ldy;
};
constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 1}, {3, 17, 33, 40, 20}, {16, 16, 32, 32, 16}, {33, 15, 130, 131, 19}};

template <class Element, class Result>
void expect_right(PlainType type, const Shape& s, const std::vector<Element>& x,
                  const std::vector<Element>& w, const std::vector<float>& bias,
                  const std::function<double(Element)>& value) {
  const DeviceArray<Element> dx(x), dw(w);
  const DeviceArray<float> db(bias);
  constexpr Result kUntouched = 77;
  const DeviceArray<Result> y(std::vector<Result>(static_cast<size_t>(s.m * s.ldy), kUntouched));
  plain_linear(type, dx.data(), s.ldx, s.m, s.k, dw.data(), s.n, bias.empty() ? nullptr : db.data(),
               y.data(), s.ldy, nullptr);
  const auto got = y.values();
  for (int64_t token = 0; token < s.m; ++token)
    for (int64_t row = 0; row < s.ldy; ++row) {
      const auto found = static_cast<double>(got[static_cast<size_t>(token * s.ldy + row)]);
      if (row >= s.n) {
        ASSERT_EQ(found, double{kUntouched});
        continue;
      }
      double sum = bias.empty() ? 0 : double{bias[static_cast<size_t>(row)]};
      double size = std::fabs(sum);
      for (int64_t i = 0; i < s.k; ++i) {
        const double term = value(x[static_cast<size_t>(token * s.ldx + i)]) *
                            value(w[static_cast<size_t>(row * s.k + i)]);
        sum += term;
        size += std::fabs(term);
      }
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(found));
        continue;
      }
      ASSERT_NEAR(found, sum, size * kernels::sum_error(s.k + 2)) << token << " " << row;
    }
}

TEST(CudaPlainLinear, MultipliesFloats) {
  Random random(5);
  for (const Shape& s : kShapes)
    for (const bool has_bias : {true, false}) {
      const auto x = random.normal(s.m * s.ldx), w = random.normal(s.n * s.k);
      const auto bias = has_bias ? random.normal(s.n) : std::vector<float>();
      expect_right<float, float>(PlainType::kF32, s, x, w, bias, [](float v) { return double{v}; });
      std::vector<uint16_t> x16, w16;
      for (const float v : x) x16.push_back(f32_to_f16(v));
      for (const float v : w) w16.push_back(f32_to_f16(v));
      expect_right<uint16_t, float>(PlainType::kF16, s, x16, w16, bias,
                                    [](uint16_t v) { return double{f16_to_f32(v)}; });
      expect_right<uint16_t, float>(PlainType::kBF16, s, x16, w16, bias,
                                    [](uint16_t v) { return double{bf16_to_f32(v)}; });
    }
}

TEST(CudaPlainLinear, MultipliesCodes) {
  for (const Shape& s : kShapes) {
    std::vector<int8_t> x(static_cast<size_t>(s.m * s.ldx)), w(static_cast<size_t>(s.n * s.k));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int8_t>(i * 37);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<int8_t>(i * 91 + 5);
    expect_right<int8_t, int32_t>(PlainType::kInt8, s, x, w, {},
                                  [](int8_t v) { return double{static_cast<float>(v)}; });
    // Every code, NaN too, which shows.
    std::vector<uint8_t> x8, w8;
    for (size_t i = 0; i < x.size(); ++i) x8.push_back(static_cast<uint8_t>(i % 3 ? i : i % 127));
    for (size_t i = 0; i < w.size(); ++i) w8.push_back(static_cast<uint8_t>(i % 127));
    expect_right<uint8_t, float>(PlainType::kE4M3, s, x8, w8, {},
                                 [](uint8_t v) { return double{e4m3_to_f32(v)}; });
  }
}

}  // namespace
}  // namespace sluice::cuda
