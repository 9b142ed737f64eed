// What dense_linear_cuda.cu asks of cuBLASLt, and what it does where that has no product: the same
// source on the host, beside a cuBLASLt of the tests' own.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "kernels/cuda/dense_linear.h"
#include "kernels/linear.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fake_cublas_lt.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using host::MissingProducts;
using kernels::Random;

class Missing {
 public:
  explicit Missing(const MissingProducts& missing) { host::set_missing_products(missing); }
  ~Missing() { host::set_missing_products({}); }
};

class CudaCublas : public ::testing::Test {
 protected:
  // The product with and without a bias, twice each: found first, then kept.
  void expect_right(DType type, int64_t products_each) {
    constexpr int64_t kM = 5, kN = 19, kK = 70, kLdx = 72, kLdy = 20;
    Random random(3);
    const auto x = kernels::rounded_to(type, random.normal(kM * kLdx));
    const auto w = kernels::rounded_to(type, random.normal(kN * kK));
    const DeviceArray<std::byte> dx(kernels::stored_as(type, x)), dw(kernels::stored_as(type, w));
    std::vector<std::unique_ptr<DeviceArray<float>>> biases;  // each at a place of its own
    for (int round = 0; round < 2; ++round)
      for (const bool has_bias : {true, false}) {
        const auto bias = random.normal(kN);
        biases.push_back(std::make_unique<DeviceArray<float>>(bias));
        const DeviceArray<float>& db = *biases.back();
        const DeviceArray<float> y(static_cast<size_t>(kM * kLdy));
        const int64_t before = host::cublas_products();
        product->run(type, dx.data(), kLdx, kM, kK, dw.data(), kN, has_bias ? db.data() : nullptr,
                     y.data(), kLdy, nullptr);
        EXPECT_EQ(host::cublas_products() - before, products_each);
        std::vector<float> expected(y.size());
        kernels::reference::linear({x.data(), nullptr, kM, kK, kLdx}, w.data(), DType::kF32, kN, kK,
                                   has_bias ? bias.data() : nullptr, expected.data(), kLdy,
                                   kernels::Compute::kF32);
        const auto got = y.values();
        for (int64_t row = 0; row < kM; ++row)
          for (int64_t col = 0; col < kN; ++col) {
            const auto i = static_cast<size_t>(row * kLdy + col);
            ASSERT_NEAR(got[i], expected[i], 1e-4) << row << " " << col;
          }
      }
  }
  template <class Code, class Result, class Run>
  void expect_codes_right(const Run& run, int64_t products_each,
                          const std::function<float(Code)>& value) {
    constexpr int64_t kM = 7, kN = 32, kK = 48;
    std::vector<Code> x(kM * kK), w(kN * kK);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<Code>(i * 5 % 120);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<Code>(i * 11 % 126 + 128 * (i % 2));
    const DeviceArray<Code> dx(x), dw(w);
    const DeviceArray<Result> y(kM * kN);
    const int64_t before = host::cublas_products();
    run(dx.data(), kM, kK, dw.data(), kN, y.data());
    EXPECT_EQ(host::cublas_products() - before, products_each);
    const auto got = y.values();
    for (int64_t token = 0; token < kM; ++token)
      for (int64_t row = 0; row < kN; ++row) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < kK; ++i) {
          const double term = double{value(x[static_cast<size_t>(token * kK + i)])} *
                              double{value(w[static_cast<size_t>(row * kK + i)])};
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(token * kN + row)]), sum,
                    size * 1e-5);
      }
  }
  void expect_all_codes_right(int64_t products_each) {
    expect_codes_right<int8_t, int32_t>(
        [&](const int8_t* x, int64_t m, int64_t k, const int8_t* w, int64_t n, int32_t* y) {
          product->run_int8(x, m, k, w, n, y, nullptr);
        },
        products_each, [](int8_t code) { return static_cast<float>(code); });
    expect_codes_right<uint8_t, float>(
        [&](const uint8_t* x, int64_t m, int64_t k, const uint8_t* w, int64_t n, float* y) {
          product->run_fp8(x, m, k, w, n, y, nullptr);
        },
        products_each, [](uint8_t code) { return e4m3_to_f32(code); });
  }

  DeviceMemory workspace{DenseLinear::workspace_bytes()};
  std::optional<DenseLinear> product{std::in_place, workspace.data()};
};

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_F(CudaCublas, IsAskedForABiasWithTheBias) {
  const int64_t before = host::cublas_wrong_questions();
  for (const DType type : kTypes) expect_right(type, 1);
  expect_all_codes_right(1);
  EXPECT_EQ(host::cublas_wrong_questions(), before);
}

// Rows of a part of a matrix begin anywhere: the same sizes, but other algorithms.
TEST_F(CudaCublas, IsAskedForEachAlignment) {
  constexpr int64_t kM = 3, kN = 5, kK = 8;
  const std::vector<float> values(256, 1.0f);
  const DeviceArray<float> w(values), x(values), y(256);
  for (const int64_t at : {64, 0, 2, 1})
    for (const int which : {0, 1, 2}) {
      const auto from = [&](int one) { return which == one ? at : 0; };
      float* const out = y.data() + from(2);
      EXPECT_NO_THROW(product->run(DType::kF32, x.data() + from(1), kK, kM, kK, w.data() + from(0),
                                   kN, nullptr, out, kN, nullptr))
          << at << " " << which;
      EXPECT_EQ(y.values()[static_cast<size_t>(from(2) + kM * kN - 1)], 8.0f);
      EXPECT_EQ(product->take_notice(), "");
    }
}

TEST_F(CudaCublas, WithoutAProductThatAddsABiasTheBiasIsAddedAfter) {
  for (const bool says_so : {false, true}) {
    const Missing missing({.with_bias = true, .says_so = says_so});
    product.emplace(workspace.data());
    for (const DType type : kTypes) expect_right(type, 1);
  }
}

TEST_F(CudaCublas, WithoutAnyProductPlainTilesMultiply) {
  const Missing missing({.all = true});
  for (const DType type : kTypes) expect_right(type, 0);
  expect_all_codes_right(0);
}

TEST_F(CudaCublas, WhatItSaysItCannotIsMultipliedTheSame) {
  const Missing missing({.all = true, .says_so = true});
  for (const DType type : kTypes) expect_right(type, 0);
}

// What it had proposed itself: the next one multiplies, or tiles of our own; it is said.
TEST_F(CudaCublas, WhatItRefusesWhenCalledIsMultipliedOtherwise) {
  for (const int refused : {1, 2, 3}) {
    SCOPED_TRACE(refused);
    const Missing missing({.refused = refused});
    product.emplace(workspace.data());
    for (const DType type : kTypes) expect_right(type, refused < 3 ? 1 : 0);
    expect_all_codes_right(refused < 3 ? 1 : 0);
    EXPECT_NE(product->take_notice().find("refused an algorithm"), std::string::npos);
    EXPECT_EQ(product->take_notice(), "");
  }
}

}  // namespace
}  // namespace sluice::cuda
