#include "policy/routing_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace sluice::policy {
namespace {

// Slots with what is used most in the last tokens (LRU) under the router that measured traces were
// fitted with: logits of a bias of all, one of the sequence, and what goes on from token to token.
class SyntheticRouting {
 public:
  SyntheticRouting(int64_t experts, int64_t chosen, int64_t sequences, unsigned seed)
      : experts_(experts), chosen_(chosen), random_(seed), bias_(draw(experts)) {
    for (int64_t s = 0; s < sequences; ++s) {
      own_.push_back(draw(experts));
      going_.push_back(draw(experts));
    }
  }
  std::vector<int32_t> next(size_t sequence) {
    const double keeps = 0.53;
    std::vector<double> logits(static_cast<size_t>(experts_));
    for (size_t e = 0; e < logits.size(); ++e) {
      double& going = going_[sequence][e];
      going = keeps * going + std::sqrt(1 - keeps * keeps) * normal_(random_);
      logits[e] = 1.09 * bias_[e] + 1.52 * own_[sequence][e] + 1.37 * going + normal_(random_);
    }
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen_, order.end(),
                      [&](int32_t a, int32_t b) {
                        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                      });
    order.resize(static_cast<size_t>(chosen_));
    return order;
  }

 private:
  std::vector<double> draw(int64_t count) {
    std::vector<double> out(static_cast<size_t>(count));
    for (double& one : out) one = normal_(random_);
    return out;
  }
  int64_t experts_, chosen_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> bias_;
  std::vector<std::vector<double>> own_, going_;
};

// Experts in no slot that a pass of a token of each sequence asks for, on average.
double simulated_missing(const ExpertShare& layer, int64_t sequences, int passes) {
  double missed = 0, counted = 0;
  for (unsigned seed = 0; seed < 2; ++seed) {
    SyntheticRouting routing(layer.experts, layer.chosen, sequences, seed);
    std::vector<int64_t> last(static_cast<size_t>(layer.experts), -1);
    for (int pass = 0; pass < passes; ++pass) {
      std::vector<int32_t> asked;
      for (int64_t s = 0; s < sequences; ++s)
        for (const int32_t expert : routing.next(static_cast<size_t>(s))) asked.push_back(expert);
      std::sort(asked.begin(), asked.end());
      asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
      std::vector<int32_t> order(static_cast<size_t>(layer.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return last[static_cast<size_t>(a)] > last[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(layer.slots));
      if (pass >= passes / 2) {
        counted += 1;
        for (const int32_t expert : asked)
          missed += std::find(order.begin(), order.end(), expert) == order.end();
      }
      for (const int32_t expert : asked) last[static_cast<size_t>(expert)] = pass;
    }
  }
  return missed / counted;
}

TEST(RoutingModel, IsNearWhatASkewedAndStickyRouterAsksFor) {
  const ExpertShare layers[] = {{128, 8, 13}, {128, 8, 32}, {128, 8, 64},
                                {256, 8, 26}, {256, 8, 64}, {128, 4, 13}};
  for (const ExpertShare& layer : layers) {
    const auto away = static_cast<double>(layer.experts - layer.slots);
    for (const int64_t sequences : {1, 16, 64, 256}) {
      const double simulated = simulated_missing(layer, sequences,
                                                 sequences == 1    ? 600
                                                 : sequences == 16 ? 60
                                                                   : 12);
      const double modelled = away * missing_share(layer, sequences);
      const double tolerance = sequences == 1 ? 0.5 * simulated + 0.2 : 0.25 * simulated;
      EXPECT_NEAR(modelled, simulated, tolerance)
          << layer.experts << " experts, " << layer.chosen << " chosen, " << layer.slots
          << " slots, " << sequences << " sequences";
    }
  }
}

TEST(RoutingModel, BordersOfItsRules) {
  EXPECT_EQ(missing_share({8, 2, 8}, 5), 0) << "all are there";
  EXPECT_EQ(missing_share({8, 2, 0}, 0), 0) << "nobody asks";
  EXPECT_EQ(most_demanding_tokens({8, 2, 0}), 0);
  EXPECT_EQ(most_demanding_tokens({8, 2, 8}), 0);
  const ExpertShare layer{128, 8, 32};
  double before = 0;
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    const double share = missing_share(layer, tokens);
    EXPECT_GT(share, before);
    EXPECT_LT(share, 1);
    before = share;
  }
  const int64_t most = most_demanding_tokens(layer);
  EXPECT_LE(missing_share(layer, most), 0.7);
  EXPECT_GT(missing_share(layer, most + 1), 0.7);
  EXPECT_GT(most, 16);
  EXPECT_LT(most, 128);
}

}  // namespace
}  // namespace sluice::policy
