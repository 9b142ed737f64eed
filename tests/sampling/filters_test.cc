#include "src/sampling/filters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "src/sampling/philox.h"
#include "src/sampling/sampler.h"
#include "tests/sampling/extremes.h"

namespace sluice::sampling {
namespace {

// The definitions, plainly: probabilities in double, everything sorted.
using Probabilities = std::vector<double>;  // by token; 0: dropped

Probabilities normalised(Probabilities p) {
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& one : p) one /= total;
  return p;
}

Probabilities softmax(const std::vector<float>& logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  Probabilities p;
  for (const float logit : logits) p.push_back(std::exp((logit - max) / temperature));
  return normalised(p);
}

// Tokens that are left, by rising key, among equals by rising id.
template <typename Key>
std::vector<size_t> ordered(const Probabilities& p, const Key& key) {
  std::vector<size_t> tokens;
  for (size_t token = 0; token < p.size(); ++token)
    if (p[token] > 0) tokens.push_back(token);
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](size_t a, size_t b) { return key(a) < key(b); });
  return tokens;
}

Probabilities top_sigma(const Probabilities& p, const std::vector<float>& logits, double n) {
  double mean = 0, variance = 0, count = 0;
  for (const float logit : logits)
    if (std::isfinite(logit)) mean += logit, ++count;
  mean /= count;
  for (const float logit : logits)
    if (std::isfinite(logit)) variance += (logit - mean) * (logit - mean) / count;
  const double least = *std::max_element(logits.begin(), logits.end()) - n * std::sqrt(variance);
  Probabilities out = p;
  for (size_t token = 0; token < p.size(); ++token)
    if (!(logits[token] >= least)) out[token] = 0;
  return normalised(out);
}

// Keeps the first in that order until their sum reaches `mass`.
Probabilities until(const Probabilities& p, const std::vector<size_t>& order, double mass) {
  Probabilities out(p.size(), 0);
  double sum = 0;
  for (const size_t token : order) {
    out[token] = p[token];
    sum += p[token];
    if (sum >= mass - 1e-7) break;
  }
  return normalised(out);
}

Probabilities typical(const Probabilities& p, double mass) {
  double entropy = 0;
  for (const double one : p)
    if (one > 0) entropy -= one * std::log(one);
  return until(p, ordered(p, [&](size_t t) { return std::abs(-std::log(p[t]) - entropy); }), mass);
}

Probabilities top_p(const Probabilities& p, double mass) {
  return until(p, ordered(p, [&](size_t t) { return -p[t]; }), mass);
}

Probabilities min_p(const Probabilities& p, double share) {
  Probabilities out = p;
  const double most = *std::max_element(p.begin(), p.end());
  for (double& one : out)
    if (one < share * most) one = 0;
  return normalised(out);
}

Probabilities xtc(const Probabilities& p, double threshold) {
  std::vector<size_t> top;
  for (const size_t token : ordered(p, [&](size_t t) { return -p[t]; }))
    if (p[token] >= threshold) top.push_back(token);
  Probabilities out = p;
  for (size_t i = 0; i + 1 < top.size(); ++i) out[top[i]] = 0;
  return normalised(out);
}

std::vector<float> random_logits(size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

void expect_equal(const std::vector<float>& found, const Probabilities& expected,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t token = 0; token < found.size(); ++token)
    ASSERT_NEAR(found[token], expected[token], 2e-6) << what << ", token " << token;
}

constexpr size_t kSizes[] = {1, 2, 3, 31, 32, 33, 100, 1000};

TEST(Filters, TopSigmaIsItsDefinition) {
  std::mt19937 random(1);
  for (const size_t size : kSizes)
    for (const float n : {0.25F, 1.0F, 3.0F, 100.0F}) {
      const auto logits = random_logits(size, random);
      SamplingParams params;
      params.top_n_sigma = n;
      params.temperature = 0.7F;
      expect_equal(distribution(logits, params, {}), top_sigma(softmax(logits, 0.7F), logits, n),
                   std::to_string(size));
    }
}

TEST(Filters, TopSigmaKeepsTheSameWhateverTheTemperature) {
  std::mt19937 random(2);
  const auto logits = random_logits(200, random);
  std::set<int> counts;
  for (const float temperature : {0.5F, 1.0F, 4.0F}) {
    SamplingParams params;
    params.top_n_sigma = 1.5F;
    params.temperature = temperature;
    const auto p = distribution(logits, params, {});
    counts.insert(
        static_cast<int>(std::count_if(p.begin(), p.end(), [](float x) { return x > 0; })));
  }
  EXPECT_EQ(counts.size(), 1U);
}

TEST(Filters, TopSigmaLooksAtWhatMayCome) {
  // Of the three that are left the deviation is 0: equals are kept, all of them.
  SamplingParams params;
  params.top_n_sigma = 0.5F;
  const auto p = distribution(std::vector<float>{-kInf, 3, 3, -kInf, 3}, params, {});
  EXPECT_FLOAT_EQ(p[1] + p[2] + p[4], 1.0F);
  EXPECT_FLOAT_EQ(p[1], p[4]);
}

TEST(Filters, TypicalIsItsDefinition) {
  std::mt19937 random(3);
  for (const size_t size : kSizes)
    for (const float mass : {0.0F, 0.2F, 0.5F, 0.9F, 0.999F})
      for (const float temperature : {0.6F, 1.0F, 2.0F}) {
        const auto logits = random_logits(size, random);
        SamplingParams params;
        params.typical_p = mass;
        params.temperature = temperature;
        expect_equal(distribution(logits, params, {}),
                     typical(softmax(logits, params.temperature), params.typical_p),
                     std::to_string(size) + " of " + std::to_string(mass));
      }
}

TEST(Filters, TypicalMayDropTheLikeliest) {
  // -ln p: 0.51, 2.3 three times, 3.0 twice; the entropy is 1.30.
  std::vector<float> logits;
  for (const float p : {0.6F, 0.1F, 0.1F, 0.1F, 0.05F, 0.05F}) logits.push_back(std::log(p));
  SamplingParams params;
  params.typical_p = 0.55F;
  EXPECT_FLOAT_EQ(distribution(logits, params, {})[0], 1.0F);  // 0.79 off, the others 1.0 and more
  for (float& logit : logits) logit = 0;
  params.typical_p = 0.5F;  // of equals the lowest three
  const auto p = distribution(logits, params, {});
  EXPECT_FLOAT_EQ(p[2], 1.0F / 3);
  EXPECT_EQ(p[3], 0);
}

TEST(Filters, MinPIsOfTheLikeliestThatTypicalHasLeft) {
  std::vector<float> logits;  // entropy 2.06: first 0.9 off, then the twelve by 1.06, 0.08 each
  logits.push_back(std::log(0.3F));
  for (int i = 0; i < 12; ++i) logits.push_back(std::log(0.7F / 12));
  SamplingParams params;
  params.typical_p = 0.2F;
  params.min_p = 0.9F;
  const auto expected = min_p(typical(softmax(logits, 1), params.typical_p), params.min_p);
  expect_equal(distribution(logits, params, {}), expected, "min-p");
}

TEST(Filters, XtcIsItsDefinition) {
  std::mt19937 random(4);
  for (const size_t size : kSizes)
    for (const float threshold : {0.001F, 0.05F, 0.1F, 0.3F, 0.6F, 1.0F}) {
      const auto logits = random_logits(size, random);
      SamplingParams params;
      params.xtc_probability = 1;
      params.xtc_threshold = threshold;
      expect_equal(distribution(logits, params, {}), xtc(softmax(logits, 1), params.xtc_threshold),
                   std::to_string(size) + " of " + std::to_string(threshold));
    }
}

TEST(Filters, XtcLeavesTheLastOfEquals) {
  SamplingParams params;
  params.xtc_probability = 1;
  params.xtc_threshold = 0.2F;
  const auto p = distribution(std::vector<float>{2, 2, 2, -kInf}, params, {});
  EXPECT_EQ(p, (std::vector<float>{0, 0, 1, 0}));
  EXPECT_EQ(distribution(std::vector<float>{5}, params, {}), std::vector<float>{1});
}

TEST(Filters, XtcAtThresholdZeroLeavesOneWithAProbability) {
  SamplingParams params;
  params.xtc_probability = 1;
  params.xtc_threshold = 0;
  // The last two have weights of zero: no one draws them, and none is what is left of the top.
  const auto p = distribution(std::vector<float>{3, 2, 1, -500, -kInf}, params, {});
  EXPECT_EQ(p, (std::vector<float>{0, 0, 1, 0, 0}));
}

TEST(Filters, XtcHappensAsOftenAsItsProbability) {
  SamplingParams params;
  params.xtc_probability = 0.3F;
  params.xtc_threshold = 0.4F;
  params.seed = 11;
  const std::vector<float> logits{0, 0};
  const Sampler sampler(params, {});
  Workspace workspace;
  std::vector<int32_t> output;
  int excluded = 0;
  for (int i = 0; i < 10000; ++i) {
    excluded += sampler.distribution(logits, {{}, output}, workspace)[0] == 0 ? 1 : 0;
    output.push_back(0);
  }
  EXPECT_NEAR(excluded, 3000, 5 * std::sqrt(10000 * 0.3 * 0.7));
}

// The numbers that exclude are not those that choose.
TEST(Filters, XtcDrawsNumbersOfItsOwn) {
  double product = 0;
  for (uint64_t i = 0; i < 10000; ++i)
    product += (uniform(5, i) - 0.5) * (uniform(5, i, Draw::kExclusion) - 0.5);
  EXPECT_LT(std::abs(product / 10000), 5 * (1.0 / 12) / 100);
}

// The order that is written down: each sees what the one before has left.
TEST(Filters, AllTogetherAreTheirDefinitionsInOrder) {
  std::mt19937 random(5);
  int changed = 0;
  for (int round = 0; round < 300; ++round) {
    const auto logits = random_logits(static_cast<size_t>(3 + round), random);
    SamplingParams params;
    const auto any = [&](float from, float to) {
      return std::uniform_real_distribution<float>(from, to)(random);
    };
    params.temperature = any(0.4F, 2);
    params.top_n_sigma = any(0.5F, 4);
    params.top_k = static_cast<int>(any(1, 60));
    params.typical_p = any(0.3F, 1);
    params.top_p = any(0.3F, 1);
    params.min_p = any(0, 0.3F);
    params.xtc_probability = 1;
    params.xtc_threshold = any(0.01F, 0.5F);
    Probabilities p = top_sigma(softmax(logits, params.temperature), logits, params.top_n_sigma);
    const auto order = ordered(p, [&](size_t t) { return -p[t]; });
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0;
    p = min_p(top_p(typical(normalised(p), params.typical_p), params.top_p), params.min_p);
    const Probabilities expected = xtc(p, params.xtc_threshold);
    changed += expected != p ? 1 : 0;
    expect_equal(distribution(logits, params, {}), expected, "round " + std::to_string(round));
  }
  EXPECT_GT(changed, 50);
}

TEST(Filters, NoneOfThemChangesGreedy) {
  std::mt19937 random(6);
  for (int round = 0; round < 50; ++round) {
    const auto logits = random_logits(100, random);
    SamplingParams params;
    params.temperature = 0;
    const int32_t token =
        Sampler(params, {}).pick(logits, {}, *std::make_unique<Workspace>()).token;
    params.typical_p = 0.1F;
    params.top_n_sigma = 0.1F;
    params.xtc_probability = 1;
    params.xtc_threshold = 0;
    params.mirostat = 1 + round % 2;
    EXPECT_FALSE(is_for_host(params));
    const Choice choice = Sampler(params, {}).pick(logits, {}, *std::make_unique<Workspace>());
    EXPECT_EQ(choice.token, token);
    EXPECT_EQ(choice.surprise_drift, 0);
  }
}

TEST(Filters, AGuideThatLeavesOneTokenLeavesIt) {
  const uint64_t only_third = 4;
  for (int which = 0; which < 5; ++which) {
    SamplingParams params;
    if (which == 0) params.typical_p = 0;
    if (which == 1) params.top_n_sigma = 0.01F;
    if (which == 2) params.xtc_probability = 1, params.xtc_threshold = 0;
    if (which > 2) params.mirostat = which - 2;
    Workspace workspace;
    const Choice choice =
        Sampler(params, {})
            .pick(std::vector<float>{9, 8, -7, 6, 5}, {{}, {}, {&only_third, 1}}, workspace);
    EXPECT_EQ(choice.token, 2) << which;
  }
}

}  // namespace
}  // namespace sluice::sampling
