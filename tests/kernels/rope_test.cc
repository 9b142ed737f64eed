#include "kernels/rope.h"

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

std::vector<float> inverse_frequencies(int rotary_dim, double base) {
  std::vector<float> result;
  for (int j = 0; j < rotary_dim / 2; ++j)
    result.push_back(static_cast<float>(std::pow(base, -2.0 * j / rotary_dim)));
  return result;
}

void compare(int64_t tokens, int heads, int head_dim, int rotary_dim, int64_t extra,
             int32_t largest, float factor, RopeLayout layout = RopeLayout::kHalves) {
  Random random(static_cast<uint32_t>(tokens * 100 + head_dim + rotary_dim));
  SCOPED_TRACE(random.trace());
  const int64_t stride = int64_t{heads} * head_dim + extra;
  auto x = random.normal(tokens * stride);
  const auto source = x;
  auto expected = x;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < tokens; ++i)
    positions.push_back(static_cast<int32_t>(random.between(0, largest)));
  const auto frequencies = inverse_frequencies(rotary_dim, 10000);
  rope_inplace(x.data(), tokens, stride, heads, head_dim, rotary_dim, positions.data(),
               frequencies.data(), factor, layout);
  reference::rope_inplace(expected.data(), tokens, stride, heads, head_dim, rotary_dim,
                          positions.data(), frequencies.data(), factor, layout);
  // The angle is the same f32; sine, cosine, factor, two products and a sum round.
  const int64_t width = int64_t{heads} * head_dim;
  expect_close(x, expected, [&](size_t i) {
    const auto at = static_cast<int64_t>(i) % stride;
    if (at >= width || at % head_dim >= rotary_dim) return 0.0;  // untouched
    const int64_t j = at % head_dim;
    const bool is_paired = layout == RopeLayout::kPairs;
    const int64_t to_other = is_paired            ? (j % 2 == 0 ? 1 : -1)
                             : j < rotary_dim / 2 ? rotary_dim / 2
                                                  : -rotary_dim / 2;
    const auto other = static_cast<size_t>(static_cast<int64_t>(i) + to_other);
    return 6 * kRounding * factor * (std::fabs(source[i]) + std::fabs(source[other]));
  });
}

TEST(Rope, AgreesWithTheReferenceOnAllShapes) {
  for_each_isa([] {
    compare(1, 1, 2, 2, 0, 10, 1);
    compare(3, 4, 64, 64, 0, 4096, 1);
    compare(17, 2, 80, 32, 0, 2048, 1);  // part of each head
    compare(5, 3, 96, 96, 40, 131072, 1.19f);
    compare(64, 8, 128, 128, 128, 1000000, 0.8f);
    compare(2, 1, 1024, 1024, 0, 5000, 1);
  });
}

TEST(Rope, TurnsNeighboursOfThePairedLayout) {
  compare(1, 1, 2, 2, 0, 10, 1, RopeLayout::kPairs);
  compare(17, 2, 80, 34, 3, 2048, 1, RopeLayout::kPairs);
  compare(5, 3, 96, 96, 40, 131072, 1.19f, RopeLayout::kPairs);
  std::vector<float> x{1, 0, 1, 0};
  const int32_t position = 1;
  const std::vector<float> frequencies{1.0f, 0.5f};
  rope_inplace(x.data(), 1, 4, 1, 4, 4, &position, frequencies.data(), 1, RopeLayout::kPairs);
  EXPECT_FLOAT_EQ(x[1], std::sin(1.0f));
  EXPECT_FLOAT_EQ(x[3], std::sin(0.5f));
}

TEST(Rope, LeavesPositionZeroAsItIs) {
  Random random(1);
  auto x = random.normal(2 * 64);
  const auto before = x;
  const int32_t position = 0;
  const auto frequencies = inverse_frequencies(64, 10000);
  rope_inplace(x.data(), 1, 128, 2, 64, 64, &position, frequencies.data(), 1);
  EXPECT_EQ(x, before);
}

TEST(Rope, PairsElementJWithJPlusHalf) {
  std::vector<float> x{1, 0, 0, 0};
  const int32_t position = 1;
  const std::vector<float> frequencies{1.0f, 0.5f};
  rope_inplace(x.data(), 1, 4, 1, 4, 4, &position, frequencies.data(), 1);
  EXPECT_FLOAT_EQ(x[0], std::cos(1.0f));
  EXPECT_EQ(x[1], 0);
  EXPECT_FLOAT_EQ(x[2], std::sin(1.0f));
  EXPECT_EQ(x[3], 0);
}

}  // namespace
}  // namespace sluice::kernels
