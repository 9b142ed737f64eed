#include "src/sampling/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "tests/sampling/extremes.h"

namespace sluice::sampling {
namespace {

// Rows of several characters: smooth, with many ties, sorted both ways, constant, mostly -inf.
std::vector<std::vector<float>> rows(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<std::vector<float>> all(6, std::vector<float>(n));
  for (size_t i = 0; i < n; ++i) {
    all[0][i] = normal(random);
    all[1][i] = std::round(normal(random));
    all[2][i] = static_cast<float>(i);
    all[3][i] = -static_cast<float>(i);
    all[4][i] = 1.25F;
    all[5][i] = random() % 4 == 0 ? normal(random) : -kInf;
  }
  return all;
}

TEST(Candidates, KthLargestEqualsSorting) {
  std::vector<float> buffer;  // kept between calls, as the sampler does
  for (const size_t n : {1U, 2U, 31U, 1025U, 5000U, 20011U}) {
    for (const auto& row : rows(n, static_cast<uint32_t>(n))) {
      std::vector<float> sorted = row;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (const size_t k : {size_t{1}, size_t{2}, size_t{50}, n / 3, n - 1, n}) {
        if (k < 1 || k > n) continue;
        EXPECT_EQ(kth_largest(row, static_cast<int64_t>(k), buffer), sorted[k - 1])
            << n << " " << k;
      }
    }
  }
}

TEST(Candidates, GatherKeepsTiesAndDropsMinusInfinity) {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  const std::vector<float> row{1.0F, -kInf, 2.0F, 0.5F, 1.0F, -kInf};
  gather(row, 1.0F, tokens, logits);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(logits, (std::vector<float>{1.0F, 2.0F, 1.0F}));
  gather(row, -kInf, tokens, logits);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 2, 3, 4}));
}

TEST(Candidates, LastOfTopPEqualsSortingAndSumming) {
  std::vector<Ranked> buffer;
  for (const size_t n : {1U, 2U, 33U, 1000U, 20011U}) {
    std::vector<int32_t> tokens(n);
    std::iota(tokens.begin(), tokens.end(), 0);
    for (const auto& row : rows(n, static_cast<uint32_t>(n) + 7)) {
      std::vector<float> weights(n);
      const float max = *std::max_element(row.begin(), row.end());
      for (size_t i = 0; i < n; ++i) weights[i] = max > -kInf ? std::exp(row[i] - max) : 1.0F;
      std::vector<Ranked> ranked(n);
      for (size_t i = 0; i < n; ++i) ranked[i] = {weights[i], tokens[i]};
      std::sort(ranked.begin(), ranked.end(),
                [](const auto& a, const auto& b) { return a.before(b); });
      double total = 0;
      for (const float weight : weights) total += weight;
      for (const float top_p : {0.0F, 0.01F, 0.3F, 0.5F, 0.9F, 0.95F, 0.999F}) {
        const Ranked last = last_of_top_p(tokens, weights, total, top_p, buffer);
        // The sums straddle the target, up to rounding of the sums themselves.
        double with = 0;
        size_t rank = 0;
        while (ranked[rank].token != last.token) with += ranked[rank++].weight;
        EXPECT_LT(with, (top_p - 1e-7 + 1e-11) * total + (rank == 0 ? 1.0 : 0.0))
            << n << " " << top_p;
        with += last.weight;
        EXPECT_GE(with, (top_p - 1e-7 - 1e-11) * total) << n << " " << top_p;
      }
    }
  }
}

TEST(Candidates, TopPReachedExactlyKeepsNoFurtherToken) {
  const std::vector<int32_t> tokens{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> weights(10, 1.0F);
  std::vector<Ranked> buffer;
  for (int tenths = 1; tenths < 10; ++tenths) {
    const float top_p = static_cast<float>(tenths) / 10;
    EXPECT_EQ(last_of_top_p(tokens, weights, 10.0, top_p, buffer).token, tenths - 1) << top_p;
  }
}

}  // namespace
}  // namespace sluice::sampling
