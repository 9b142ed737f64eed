#include "kernels/norm.h"

#include <algorithm>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{1, 1},  {1, 7},  {3, 8},   {2, 15},   {5, 16},   {1, 17},
                         {4, 31}, {7, 64}, {3, 127}, {2, 4099}, {33, 1025}};

double sum_of_magnitudes(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::fabs(double{x[i]});
  return sum;
}

TEST(RmsNorm, AgreesWithTheReferenceOnAllShapes) {
  for_each_isa([] {
    for (const Shape& shape : kShapes) {
      Random random(static_cast<uint32_t>(shape.rows * 1000 + shape.cols));
      SCOPED_TRACE(random.trace());
      const auto x = random.normal(shape.rows * shape.cols, 3);
      const auto gains = random.normal(shape.cols);
      for (const float* gain : {gains.data(), static_cast<const float*>(nullptr)}) {
        std::vector<float> y(x.size()), expected(x.size());
        rms_norm(x.data(), gain, 1e-6f, y.data(), shape.rows, shape.cols);
        reference::rms_norm(x.data(), gain, 1e-6f, expected.data(), shape.rows, shape.cols);
        // Half the sum's error, since the root halves it, and roundings of the mean, root, quotient
        // and two products.
        const double relative = sum_error(shape.cols) / 2 + 6 * kRounding;
        expect_close(y, expected,
                     [&](size_t i) { return relative * std::fabs(expected[i]) + 1e-38; });
      }
    }
  });
}

TEST(RmsNorm, WorksInPlace) {
  Random random(5);
  auto x = random.normal(3 * 100);
  const auto gain = random.normal(100);
  std::vector<float> y(x.size());
  rms_norm(x.data(), gain.data(), 1e-5f, y.data(), 3, 100);
  rms_norm(x.data(), gain.data(), 1e-5f, x.data(), 3, 100);
  EXPECT_EQ(x, y);
}

TEST(RmsNorm, KeepsARowOfZerosAtZero) {
  std::vector<float> x(40, 0.0f), gain(40, 2.0f), y(40, 1.0f);
  rms_norm(x.data(), gain.data(), 1e-6f, y.data(), 1, 40);
  EXPECT_EQ(y, x);
}

void compare_layer_norm(const Shape& shape, bool has_gain, bool has_bias) {
  Random random(static_cast<uint32_t>(shape.rows * 1000 + shape.cols + 7));
  SCOPED_TRACE(random.trace());
  auto x = random.normal(shape.rows * shape.cols, 2);
  for (float& value : x) value += 1.5f;
  const auto gain = random.normal(shape.cols);
  const auto bias = random.normal(shape.cols);
  std::vector<float> y(x.size()), expected(x.size());
  const float* g = has_gain ? gain.data() : nullptr;
  const float* b = has_bias ? bias.data() : nullptr;
  layer_norm(x.data(), g, b, 1e-3f, y.data(), shape.rows, shape.cols);
  reference::layer_norm(x.data(), g, b, 1e-3f, expected.data(), shape.rows, shape.cols);
  expect_close(y, expected, [&](size_t i) {
    const auto col = static_cast<int64_t>(i) % shape.cols;
    const float* row = x.data() + (static_cast<int64_t>(i) - col);
    const auto cols = static_cast<double>(shape.cols);
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < shape.cols; ++j) mean += row[j] / cols;
    for (int64_t j = 0; j < shape.cols; ++j) variance += (row[j] - mean) * (row[j] - mean) / cols;
    const double deviation = std::sqrt(variance + 1e-3);
    const double scale = std::fabs(has_gain ? gain[static_cast<size_t>(col)] : 1.0) / deviation;
    // The mean's error moves every element; the variance's error scales them.
    const double mean_error =
        (sum_error(shape.cols) + 2 * kRounding) * sum_of_magnitudes(row, shape.cols) / cols;
    const double value_error = mean_error + kRounding * std::fabs(row[col] - mean);
    const double relative = sum_error(shape.cols) / 2 + 2 * mean_error / deviation + 6 * kRounding;
    return scale * (value_error + relative * std::fabs(row[col] - mean)) +
           2 * kRounding * std::fabs(expected[i]) + 1e-30;
  });
}

TEST(LayerNorm, AgreesWithTheReferenceOnAllShapes) {
  for_each_isa([] {
    for (const Shape& shape : kShapes) compare_layer_norm(shape, true, true);
  });
}

TEST(LayerNorm, TakesNoGainAndNoBias) {
  for_each_isa([] {
    compare_layer_norm({3, 37}, false, true);
    compare_layer_norm({3, 37}, true, false);
    compare_layer_norm({3, 37}, false, false);
  });
}

TEST(LayerNorm, SurvivesALargeCommonOffset) {
  // mean 1e4, deviation 1: a one-pass variance would lose all digits.
  Random random(11);
  auto x = random.normal(512);
  for (float& value : x) value += 1e4f;
  std::vector<float> y(x.size()), expected(x.size());
  layer_norm(x.data(), nullptr, nullptr, 1e-5f, y.data(), 1, 512);
  reference::layer_norm(x.data(), nullptr, nullptr, 1e-5f, expected.data(), 1, 512);
  expect_close(y, expected, [](size_t) { return sum_error(512) * 1e4; });
}

}  // namespace
}  // namespace sluice::kernels
