#include "src/sampling/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::sampling {
namespace {

// The known answers that the generator's authors publish (Random123, kat_vectors, philox4x32 10
// rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformHasTheMomentsOfTheUniformDistribution) {
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0, lagged = 0, before = 0.5;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(42, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
    lagged += (u - 0.5) * (before - 0.5);
    before = u;
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
  EXPECT_NEAR(lagged / kDraws, 0.0, 5 * (1.0 / 12) / std::sqrt(kDraws));
}

TEST(Philox, HighHalvesOfSeedAndPositionCount) {
  EXPECT_NE(uniform(1, 0), uniform(1 + (uint64_t{1} << 32), 0));
  EXPECT_NE(uniform(1, 0), uniform(1, uint64_t{1} << 32));
}

}  // namespace
}  // namespace sluice::sampling
