#include "kernels/linear.h"

#include <algorithm>
#include <cstring>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

// One product with everything around it: x padded as the contract asks, w at an address good for
// one element only, y with a row stride, and room past everything that must stay as it was.
class Product {
 public:
  Product(DType dtype, Compute compute, int64_t m, int64_t n, int64_t k, uint32_t seed,
          bool has_bias = true)
      : dtype_(dtype), compute_(compute), m_(m), n_(n), k_(k), ldy_(n + 5), random_(seed) {
    x_ = random_.normal(padded_rows(m) * k);
    rounded_ = stored_as(DType::kBF16, x_);
    const auto weights = random_.normal(n * k);
    w_ = stored_as(dtype, weights, dtype_bytes(dtype));
    if (has_bias) bias_ = random_.normal(n);
    y_.assign(static_cast<size_t>(padded_rows(m) * ldy_), kUntouched);
    scratch_.resize(static_cast<size_t>(linear_scratch_bytes(dtype, m, n, k, compute)));
    find_expected();
  }

  void run() {
    linear(activations(), weights(), dtype_, n_, k_, bias(), y_.data(), ldy_, compute_, scratch_);
  }

  void expect_right() {
    SCOPED_TRACE(random_.trace() + ", m " + std::to_string(m_) + ", n " + std::to_string(n_) +
                 ", k " + std::to_string(k_) + ", " + std::string(dtype_name(dtype_)) +
                 (compute_ == Compute::kBF16 ? " in bf16" : " in f32"));
    std::vector<float> actual, expected;
    for (int64_t i = 0; i < m_; ++i) {
      const auto row = y_.begin() + i * ldy_;
      actual.insert(actual.end(), row, row + n_);
      const float* past = y_.data() + i * ldy_ + n_;
      EXPECT_TRUE(std::all_of(past, past + 5, [](float v) { return v == kUntouched; }))
          << "wrote past column n of row " << i;
    }
    expect_close(actual, expected_, [&](size_t i) { return tolerance_[i]; });
    std::fill(y_.begin(), y_.end(), kUntouched);
  }

  const std::vector<float>& y() const { return y_; }

 private:
  static constexpr float kUntouched = 12345;
  Activations activations() const {
    return {x_.data(), reinterpret_cast<const uint16_t*>(rounded_.data()), m_, k_, k_};
  }
  const std::byte* weights() const { return w_.data() + dtype_bytes(dtype_); }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

  void find_expected() {
    expected_.resize(static_cast<size_t>(m_ * n_));
    reference::linear(activations(), weights(), dtype_, n_, k_, bias(), expected_.data(), n_,
                      compute_);
    // Sums of magnitudes: the same product of absolute values.
    auto x = compute_ == Compute::kBF16 ? rounded_to(DType::kBF16, x_) : x_;
    for (float& value : x) value = std::fabs(value);
    std::vector<float> w(static_cast<size_t>(n_ * k_));
    reference::convert(dtype_, weights(), DType::kF32, w.data(), n_ * k_);
    for (float& value : w) value = std::fabs(value);
    tolerance_.resize(expected_.size());
    for (int64_t i = 0; i < m_; ++i)
      for (int64_t row = 0; row < n_; ++row) {
        double sum = bias_.empty() ? 0 : std::fabs(bias_[static_cast<size_t>(row)]);
        for (int64_t j = 0; j < k_; ++j)
          sum += double{x[static_cast<size_t>(i * k_ + j)]} * w[static_cast<size_t>(row * k_ + j)];
        tolerance_[static_cast<size_t>(i * n_ + row)] = sum_error(k_) * sum + 1e-30;
      }
  }

  DType dtype_;
  Compute compute_;
  int64_t m_, n_, k_, ldy_;
  Random random_;
  std::vector<float> x_, bias_, y_, expected_;
  std::vector<double> tolerance_;
  std::vector<std::byte> rounded_, w_, scratch_;
};

struct Kind {
  DType dtype;
  Compute compute;
};

std::vector<Kind> kinds() {
  std::vector<Kind> result{
      {DType::kF32, Compute::kF32}, {DType::kF16, Compute::kF32}, {DType::kBF16, Compute::kF32}};
  if (bf16_compute_supported()) result.push_back({DType::kBF16, Compute::kBF16});
  return result;
}

void check(const Kind& kind, int64_t m, int64_t n, int64_t k, bool has_bias = true) {
  Product product(kind.dtype, kind.compute, m, n, k, static_cast<uint32_t>(m * 10007 + n * 101 + k),
                  has_bias);
  product.run();
  product.expect_right();
}

TEST(Linear, AgreesWithTheReferenceForEveryM) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (int64_t m = 1; m <= 70; m += m < 20 ? 1 : 7) check(kind, m, 77, 93);
  });
}

TEST(Linear, AgreesWithTheReferenceForEveryN) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t n : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 130})
        for (const int64_t m : {1, 9, 21}) check(kind, m, n, 40);
  });
}

TEST(Linear, AgreesWithTheReferenceForEveryK) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t k : {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 255, 256, 257, 700})
        for (const int64_t m : {1, 4, 18}) check(kind, m, 35, k);
  });
}

TEST(Linear, TakesNoBias) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t m : {1, 5, 17, 40}) check(kind, m, 66, 70, false);
  });
}

// Large enough for oneDNN, and for every thread to get a share.
TEST(Linear, AgreesWithTheReferenceOnLargeMatrices) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t m : {1, 37, 131}) check(kind, m, 775, 515);
  });
}

TEST(Linear, MultipliesMoreRowsThanOnednnTakesAtATime) {
  for (const Kind& kind : kinds()) check(kind, 530, 260, 200);
  if (bf16_compute_supported()) check({DType::kBF16, Compute::kBF16}, 1030, 520, 400);
}

// Rows of x that are as long as these are arranged and multiplied in parts.
TEST(Linear, ManyLongRowsGoInParts) {
  for (const Kind& kind : kinds()) check(kind, 121, 35, 25001);
}

// A process of its own under ctest, so that oneDNN, too, is held to the lower instruction set.
TEST(Linear, AgreesWithTheReferenceWithoutAmx) {
  if (!supports_isa(Isa::kAmx)) GTEST_SKIP() << "what runs without AMX is all that runs here";
  force_isa(Isa::kAvx512Bf16);
  for (const int64_t m : {1, 8, 33, 70}) check({DType::kBF16, Compute::kBF16}, m, 1031, 515);
  force_isa(detected_isa());
}

TEST(Linear, NeverMixesRowsOfX) {
  // Rows of x are independent: a NaN in one reaches no other row of y, padding included.
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t m : {3, 20, 66}) {
        constexpr int64_t kN = 64, kK = 48;
        Random random(8);
        auto x = random.normal(padded_rows(m) * kK);
        for (int64_t j = m * kK; j < padded_rows(m) * kK; ++j) x[static_cast<size_t>(j)] = NAN;
        for (int64_t j = 0; j < kK; ++j) x[static_cast<size_t>(kK + j)] = NAN;
        const auto rounded = stored_as(DType::kBF16, x);
        const auto w = stored_as(kind.dtype, random.normal(kN * kK));
        std::vector<float> y(static_cast<size_t>(padded_rows(m) * kN));
        std::vector<std::byte> scratch(
            static_cast<size_t>(linear_scratch_bytes(kind.dtype, m, kN, kK, kind.compute)));
        linear({x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m, kK, kK}, w.data(),
               kind.dtype, kN, kK, nullptr, y.data(), kN, kind.compute, scratch);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < kN; ++j)
            ASSERT_EQ(std::isnan(y[static_cast<size_t>(i * kN + j)]), i == 1)
                << "row " << i << " column " << j;
      }
  });
}

// What rows, columns and panels are filled up with meets no infinity.
TEST(Linear, AnInfinityStaysInItsProducts) {
  for_each_isa([] {
    for (const Kind& kind : kinds())
      for (const int64_t k : {1, 5, 47})
        for (const int64_t m : {1, 4, 21}) {
          constexpr int64_t kN = 37;
          std::vector<float> x(static_cast<size_t>(padded_rows(m) * k), 0.5f);
          x[static_cast<size_t>(m * k - 1)] = INFINITY;
          const std::vector<std::byte> rounded = stored_as(DType::kBF16, x);
          std::vector<float> weights(static_cast<size_t>(kN * k), 2.0f);
          weights[static_cast<size_t>(2 * k)] = -INFINITY;  // row 2; where k is 1 all of it
          const std::vector<std::byte> w = stored_as(kind.dtype, weights);
          std::vector<float> y(static_cast<size_t>(padded_rows(m) * kN));
          std::vector<std::byte> scratch(
              static_cast<size_t>(linear_scratch_bytes(kind.dtype, m, kN, k, kind.compute)));
          linear({x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m, k, k}, w.data(),
                 kind.dtype, kN, k, nullptr, y.data(), kN, kind.compute, scratch);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t row = 0; row < kN; ++row) {
              const float value = y[static_cast<size_t>(i * kN + row)];
              const bool is_last = i == m - 1;
              SCOPED_TRACE("k " + std::to_string(k) + ", m " + std::to_string(m) + ", row " +
                           std::to_string(i) + ", column " + std::to_string(row));
              if (row == 2 && is_last && k > 1)
                ASSERT_TRUE(std::isnan(value)) << value;
              else if (row == 2)
                ASSERT_EQ(value, -INFINITY);
              else if (is_last)
                ASSERT_EQ(value, INFINITY);
              else
                ASSERT_EQ(value, static_cast<float>(k));
            }
        }
  });
}

TEST(Linear, DoesNothingForNoRows) {
  std::vector<float> y{7};
  const std::vector<float> x{1}, w{1};
  linear({x.data(), nullptr, 0, 1, 1}, w.data(), DType::kF32, 1, 1, nullptr, y.data(), 1,
         Compute::kF32, {});
  linear({x.data(), nullptr, 1, 1, 1}, w.data(), DType::kF32, 0, 1, nullptr, y.data(), 1,
         Compute::kF32, {});
  EXPECT_EQ(y[0], 7);
  EXPECT_EQ(padded_rows(0), 0);
  EXPECT_EQ(linear_scratch_bytes(DType::kF32, 0, 8, 8, Compute::kF32), 0);
}

TEST(Linear, PadsRowsUpwardsAndNeverDown) {
  int64_t before = 0;
  for (int64_t m = 0; m < 2000; ++m) {
    EXPECT_GE(padded_rows(m), m);
    EXPECT_GE(padded_rows(m), before) << m;
    EXPECT_LT(padded_rows(m), m + 16);
    before = padded_rows(m);
  }
}

TEST(Linear, ScratchStaysSmallHoweverManyRows) {
  const int64_t of_few = linear_scratch_bytes(DType::kBF16, 1000, 4096, 4096, Compute::kBF16);
  EXPECT_EQ(linear_scratch_bytes(DType::kBF16, 100000, 4096, 4096, Compute::kBF16), of_few);
  EXPECT_LE(of_few, int64_t{64} << 20);
  EXPECT_LE(linear_scratch_bytes(DType::kF16, 100000, 4096, 4096, Compute::kF32), 8 << 20);
}

TEST(Linear, DescribesItself) { EXPECT_FALSE(describe_linear().empty()); }

}  // namespace
}  // namespace sluice::kernels
