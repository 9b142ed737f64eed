#include "src/sampling/row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/sampling/extremes.h"

namespace sluice::sampling {
namespace {

TEST(Row, AgreesWithDoubleOverTheWholeRange) {
  std::vector<float> exponents;
  for (float x = 0; x > -87.0F; x -= 0.0037F) exponents.push_back(x);
  std::vector<float> values = exponents;
  exponentiate(values, 0.0F, 1.0F);
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = std::exp(static_cast<double>(exponents[i]));
    EXPECT_NEAR(values[i] / exact, 1.0, 2e-7) << exponents[i];
  }
}

TEST(Row, LargestAtEveryPlaceAndLength) {
  EXPECT_EQ(largest({}).value, -kInf);
  for (size_t n = 1; n < 40; ++n) {
    std::vector<float> values(n, -kInf);
    EXPECT_EQ(largest(values).value, -kInf);
    EXPECT_FALSE(largest(values).has_unusable);
    for (size_t at = 0; at < n; ++at) {
      values.assign(n, -7.0F);
      values[at] = -6.5F;
      EXPECT_EQ(largest(values).value, -6.5F) << n << " " << at;
      EXPECT_FALSE(largest(values).has_unusable) << n << " " << at;
      for (const float bad : {kNan, kInf}) {
        values[at] = bad;
        EXPECT_TRUE(largest(values).has_unusable) << n << " " << at;
      }
    }
  }
}

TEST(Row, OneAtTheMaximumAndZeroFarBelow) {
  std::vector<float> values{5.0F, -kInf, -200.0F, -82.1F};
  const double sum = exponentiate(values, 5.0F, 1.0F);
  EXPECT_EQ(values, (std::vector<float>{1.0F, 0.0F, 0.0F, 0.0F}));
  EXPECT_EQ(sum, 1.0);
}

TEST(Row, TinyTemperatureIsTheLimitNotNaN) {
  std::vector<float> values{1.0F, 1.0F, 0.999F, -3.0e38F};
  const double sum = exponentiate(values, 1.0F, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(values, (std::vector<float>{1.0F, 1.0F, 0.0F, 0.0F}));
  EXPECT_EQ(sum, 2.0);
}

TEST(Row, SumsEqualDoubleForAwkwardLengths) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 4);
  for (const size_t n : {1U, 2U, 3U, 5U, 1023U, 1024U, 1025U, 50257U}) {
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    float max = -kInf;
    double exact = 0;
    for (const float value : values) max = std::max(max, value);
    for (const float value : values) exact += std::exp(static_cast<double>(value));
    EXPECT_NEAR(log_sum_exp(values, max), std::log(exact), 1e-6) << n;
    const double sum = exponentiate(values, max, 1.0F);
    EXPECT_NEAR(sum * std::exp(static_cast<double>(max)) / exact, 1.0, 2e-6) << n;
  }
}

}  // namespace
}  // namespace sluice::sampling
