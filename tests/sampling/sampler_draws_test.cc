#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/sampling/sampler.h"

namespace sluice::sampling {
namespace {

std::vector<int32_t> draws(const SamplingParams& params, const std::vector<float>& logits,
                           int count) {
  const Sampler sampler(params, {});
  Workspace workspace;
  std::vector<int32_t> output;
  output.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    output.push_back(sampler.pick(logits, {{}, output}, workspace).token);
  return output;
}

std::vector<float> random_logits(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Draws follow the distribution: chi-square below its mean plus five standard deviations. The seed
// is fixed.
TEST(SamplerDraws, FollowTheDistribution) {
  constexpr int kDraws = 100000;
  std::vector<SamplingParams> settings(5);
  settings[1].temperature = 0.7F;
  settings[2].top_k = 7;
  settings[3].top_p = 0.8F;
  settings[4].min_p = 0.1F;
  settings[4].temperature = 1.5F;
  const std::vector<float> logits = random_logits(30, 5);
  for (size_t i = 0; i < settings.size(); ++i) {
    settings[i].seed = 1234 + i;
    const auto expected = distribution(logits, settings[i], {});
    std::vector<int> counts(logits.size());
    for (const int32_t token : draws(settings[i], logits, kDraws))
      ++counts[static_cast<size_t>(token)];
    double chi_square = 0;
    int cells = 0, rare_count = 0;
    double rare_expected = 0;  // tokens with fewer than 5 expected draws share one cell
    for (size_t token = 0; token < logits.size(); ++token) {
      const double mean = static_cast<double>(expected[token]) * kDraws;
      if (expected[token] == 0) {
        EXPECT_EQ(counts[token], 0) << "setting " << i << " drew token " << token;
      } else if (mean < 5) {
        rare_expected += mean;
        rare_count += counts[token];
      } else {
        chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
        ++cells;
      }
    }
    if (rare_expected > 5) {
      chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
      ++cells;
    }
    const double freedom = cells - 1;
    ASSERT_GT(freedom, 0) << i;
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom))
        << "setting " << i << ", " << freedom;
  }
}

TEST(SamplerDraws, SameSeedSameTokensOtherSeedOthers) {
  const std::vector<float> logits = random_logits(1000, 8);
  SamplingParams params;
  params.seed = 99;
  const auto first = draws(params, logits, 200);
  EXPECT_EQ(draws(params, logits, 200), first);
  params.seed = 100;
  const auto other = draws(params, logits, 200);
  int same = 0;
  for (size_t i = 0; i < first.size(); ++i) same += first[i] == other[i];
  EXPECT_LT(same, 40);
}

TEST(SamplerDraws, ATokenDependsOnSeedAndPositionOnly) {
  const std::vector<float> logits = random_logits(500, 9);
  SamplingParams params;
  params.seed = 7;
  const auto whole = draws(params, logits, 64);
  const Sampler resumed(params,
                        {});  // a fresh sampler and workspace in the middle, positions out of order
  Workspace workspace;
  for (size_t position = whole.size(); position-- > 0;) {
    const auto output = std::span(whole).first(position);
    EXPECT_EQ(resumed.pick(logits, {{}, output}, workspace).token, whole[position]) << position;
  }
}

TEST(SamplerDraws, OneSequenceIsNotAnothersShifted) {
  const std::vector<float> logits(64, 0.0F);
  std::vector<std::vector<int32_t>> sequences;
  for (uint64_t i = 0; i < 4; ++i) {
    SamplingParams params;
    params.seed = derive_seed(0, i);
    sequences.push_back(draws(params, logits, 64));
  }
  for (size_t shift = 0; shift < 8; ++shift) {
    int same = 0;
    for (size_t i = 0; i + shift < 64; ++i) same += sequences[0][i + shift] == sequences[1][i];
    EXPECT_LT(same, 10) << shift;
  }
}

}  // namespace
}  // namespace sluice::sampling
