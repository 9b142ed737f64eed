#include "kernels/softmax.h"

#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Softmax, AgreesWithTheReferenceOnAllShapes) {
  for_each_isa([] {
    for (const int64_t cols : {1, 3, 8, 15, 17, 100, 5003}) {
      constexpr int64_t kRows = 9;
      Random random(static_cast<uint32_t>(cols));
      SCOPED_TRACE(random.trace());
      auto x = random.normal(kRows * cols, 5);
      const auto source = x;
      auto expected = x;
      softmax(x.data(), kRows, cols);
      reference::softmax(expected.data(), kRows, cols);
      expect_close(x, expected, [&](size_t i) {
        // The difference to the maximum rounds once, and e^ turns that into a relative error; then
        // e^, sum and quotient.
        const double relative = 64 * kRounding + 4e-7 + sum_error(cols) + 3 * kRounding;
        return relative * expected[i] + 1e-37;
      });
    }
  });
}

TEST(Softmax, KeepsLargeScoresFiniteAndHiddenOnesAtZero) {
  for_each_isa([] {
    std::vector<float> x(40, -kInfinity);
    x[7] = 1e4f;
    x[33] = 1e4f;
    x[2] = -1e4f;
    softmax(x.data(), 1, 40);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 7 || i == 33 ? 0.5f : 0.0f) << i;
  });
}

TEST(Softmax, PassesNanOn) {
  for_each_isa([] {
    std::vector<float> x(20, 0.0f);
    x[5] = kNan;
    softmax(x.data(), 1, 20);
    for (const float value : x) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(LogSoftmax, AgreesWithTheReference) {
  for (const int64_t n : {1, 2, 1000, 128257}) {
    Random random(static_cast<uint32_t>(n));
    SCOPED_TRACE(random.trace());
    const auto x = random.normal(n, 4);
    std::vector<float> y(x.size()), expected(x.size());
    const double sum = log_softmax(x.data(), n, y.data());
    EXPECT_NEAR(sum, reference::log_softmax(x.data(), n, expected.data()),
                1e-12 * static_cast<double>(n) + 1e-12);
    expect_close(y, expected, [&](size_t i) {
      return kRounding * std::fabs(expected[i]) + 1e-12 * static_cast<double>(n);
    });
  }
}

TEST(LogSoftmax, SurvivesLargeLogits) {
  std::vector<float> x{1e4f, 1e4f, -1e4f, -kInfinity};
  log_softmax(x.data(), 4, x.data());
  EXPECT_FLOAT_EQ(x[0], -std::log(2.0f));
  EXPECT_FLOAT_EQ(x[2], -2e4f - std::log(2.0f));
  EXPECT_EQ(x[3], -kInfinity);
}

TEST(Argmax, TakesTheLowestOnTies) {
  const std::vector<float> x{1, 5, 3, 5, 5};
  EXPECT_EQ(argmax(x.data(), 5), 1);
  EXPECT_EQ(argmax(x.data() + 2, 3), 1);
  EXPECT_EQ(argmax(x.data(), 1), 0);
}

TEST(Argmax, PassesOverNan) {
  const std::vector<float> x{kNan, -kInfinity, kNan, 2, kNan};
  EXPECT_EQ(argmax(x.data(), 5), 3);
  EXPECT_EQ(argmax(x.data(), 3), 1);
  EXPECT_EQ(argmax(x.data(), 1), 0);
  EXPECT_EQ(reference::argmax(x.data(), 5), 3);
  EXPECT_EQ(reference::argmax(x.data(), 1), 0);
}

TEST(Argmax, EqualsTheReferenceOnRandomRows) {
  Random random(77);
  SCOPED_TRACE(random.trace());
  for (int round = 0; round < 50; ++round) {
    auto x = random.normal(random.between(1, 300));
    for (float& value : x) value = std::round(value * 2);  // many ties
    const auto n = static_cast<int64_t>(x.size());
    EXPECT_EQ(argmax(x.data(), n), reference::argmax(x.data(), n));
  }
}

}  // namespace
}  // namespace sluice::kernels
