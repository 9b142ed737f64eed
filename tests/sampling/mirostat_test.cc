#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "src/sampling/sampler.h"

namespace sluice::sampling {
namespace {

std::vector<float> logits_of(size_t n, uint32_t seed, float spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<double> chances(const std::vector<float>& logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float logit : logits) p.push_back(std::exp((logit - max) / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& one : p) one /= total;
  return p;
}

// The paper's Algorithm 1 as it stands: how many of the likeliest version 1 keeps, before rounding.
double paper_k(const std::vector<double>& sorted, double mu) {
  double up = 0, down = 0;
  for (size_t i = 0; i + 1 < std::min<size_t>(sorted.size(), 100); ++i) {
    const double t = std::log((static_cast<double>(i) + 2) / (static_cast<double>(i) + 1));
    up += t * std::log(sorted[i] / sorted[i + 1]);
    down += t * t;
  }
  const double s = up / down, epsilon = s - 1;
  const auto n = static_cast<double>(sorted.size());
  return std::pow(epsilon * std::pow(2, mu) / (1 - std::pow(n, -epsilon)), 1 / s);
}

size_t count_kept(const std::vector<float>& p) {
  return static_cast<size_t>(std::count_if(p.begin(), p.end(), [](float x) { return x > 0; }));
}

TEST(Mirostat, VersionOneKeepsAsManyAsThePaperSays) {
  int between = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const auto logits = logits_of(50 + seed * 7, seed, 0.5F + static_cast<float>(seed % 5));
    SamplingParams params;
    params.mirostat = 1;
    params.temperature = 0.8F;
    const double drift = static_cast<double>(seed % 17) - 12;
    Workspace workspace;
    const auto found = Sampler(params, {}).distribution(logits, {{}, {}, {}, drift}, workspace);
    auto sorted = chances(logits, params.temperature);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double k = paper_k(sorted, 2 * params.mirostat_tau + drift);
    const double most = static_cast<double>(sorted.size());
    const double expected = std::clamp(k, 1.0, most);
    EXPECT_NEAR(static_cast<double>(count_kept(found)), expected, 0.5 + expected * 1e-4) << seed;
    between += expected > 1 && expected < most ? 1 : 0;
  }
  EXPECT_GT(between, 50);
}

TEST(Mirostat, VersionTwoKeepsWhatSurprisesLess) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const auto logits = logits_of(1 + seed * 5, seed);
    SamplingParams params;
    params.mirostat = 2;
    params.mirostat_tau = 0.1F * static_cast<float>(seed % 40);
    Workspace workspace;
    const auto found = Sampler(params, {}).distribution(logits, {}, workspace);
    const auto p = chances(logits, 1);
    const double most = *std::max_element(p.begin(), p.end());
    for (size_t token = 0; token < p.size(); ++token) {
      const double bits = -std::log2(p[token]), bound = 2.0 * params.mirostat_tau;
      if (std::abs(bits - bound) < 1e-5) continue;
      EXPECT_EQ(found[token] > 0, bits < bound || p[token] == most) << seed << " " << token;
    }
  }
}

// Drift is what Algorithm 1 adds to mu, over a whole sequence.
TEST(Mirostat, TheBoundFollowsThePaper) {
  for (const int version : {1, 2}) {
    SamplingParams params;
    params.mirostat = version;
    params.mirostat_tau = 3;
    params.mirostat_eta = 0.2F;
    params.temperature = 1.3F;
    params.seed = 9;
    params.logprobs = version == 1 ? -1 : 2;  // either way
    const Sampler sampler(params, {});
    Workspace workspace;
    std::vector<int32_t> output;
    double mu = 2 * 3.0, drift = 0;
    for (uint32_t i = 0; i < 300; ++i) {
      const auto logits = logits_of(200, i);
      const Choice choice = sampler.pick(logits, {{}, output, {}, drift}, workspace);
      output.push_back(choice.token);
      const double bits =
          -std::log2(chances(logits, params.temperature)[static_cast<size_t>(choice.token)]);
      mu -= static_cast<double>(params.mirostat_eta) * (bits - 3.0);
      drift = choice.surprise_drift;
      ASSERT_NEAR(6 + drift, mu, 1e-3) << i;
      mu = 6 + drift;
    }
  }
}

// What it is for: the surprise of what is drawn comes out as tau.
TEST(Mirostat, SurpriseEndsUpAsAsked) {
  for (const int version : {1, 2})
    for (const float tau : {4.5F, 6.0F}) {
      SamplingParams params;
      params.mirostat = version;
      params.mirostat_tau = tau;
      params.seed = 3;
      const Sampler sampler(params, {});
      Workspace workspace;
      std::vector<int32_t> output;
      double drift = 0, sum = 0;
      for (uint32_t i = 0; i < 2000; ++i) {
        const auto logits = logits_of(300, i % 50, 1.5F);
        const Choice choice = sampler.pick(logits, {{}, output, {}, drift}, workspace);
        output.push_back(choice.token);
        drift = choice.surprise_drift;
        if (i >= 500) sum -= std::log2(chances(logits, 1)[static_cast<size_t>(choice.token)]);
      }
      EXPECT_NEAR(sum / 1500, tau, 0.15) << version;
    }
}

TEST(Mirostat, CornersKeepAToken) {
  const std::vector<std::vector<float>> rows{{1},
                                             {2, 2},
                                             {2, 2, 2, 2, 2, 2, 2},
                                             {0, -500, -600},
                                             std::vector<float>(5000, 1),
                                             {3, 2, 1, 0, -1e30F}};
  for (const int version : {1, 2})
    for (const double drift : {-1e6, -10.0, 0.0, 1e6})
      for (const auto& logits : rows) {
        SamplingParams params;
        params.mirostat = version;
        Workspace workspace;
        const Sampler sampler(params, {});
        const History history{{}, {}, {}, drift};
        const auto p = sampler.distribution(logits, history, workspace);
        EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1, 1e-4);
        EXPECT_GT(p[static_cast<size_t>(sampler.pick(logits, history, workspace).token)], 0);
        EXPECT_TRUE(drift > -100 || count_kept(p) == 1);
      }
}

TEST(Mirostat, TakesThePlaceOfTheFilters) {
  const auto logits = logits_of(100, 1);
  SamplingParams params;
  params.mirostat = 2;
  Workspace workspace;
  const auto alone = Sampler(params, {}).distribution(logits, {}, workspace);
  params.top_k = 1;
  params.top_p = 0.1F;
  params.min_p = 0.9F;
  params.typical_p = 0.1F;
  params.top_n_sigma = 0.1F;
  params.xtc_probability = 1;
  EXPECT_EQ(Sampler(params, {}).distribution(logits, {}, workspace), alone);
}

}  // namespace
}  // namespace sluice::sampling
