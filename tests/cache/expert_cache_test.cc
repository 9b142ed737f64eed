#include "src/cache/expert_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

namespace sluice {
namespace {

using testing::ElementsAre;
using Place = ExpertCache::Place;
using Use = ExpertCache::Use;

std::vector<Use> uses(std::initializer_list<int32_t> experts) {
  std::vector<Use> out;
  for (const int32_t expert : experts) out.push_back({expert, 1});
  return out;
}

TEST(ExpertCache, BeginsWithTheFirst) {
  const ExpertCache cache(8, 3, 0.9);
  EXPECT_THAT(cache.held(), ElementsAre(0, 1, 2));
  EXPECT_EQ(cache.slot_of(2), 2);
  EXPECT_EQ(cache.slot_of(3), -1);
}

TEST(ExpertCache, WhatWasNeverUsedGoesFirstFromTheBack) {
  ExpertCache cache(8, 3, 0.9);
  EXPECT_THAT(cache.take(uses({0, 5}), 1), ElementsAre(Place{0, 0, false}, Place{5, 2, true}));
  EXPECT_THAT(cache.take(uses({6}), 1), ElementsAre(Place{6, 1, true}));
  EXPECT_THAT(cache.held(), ElementsAre(0, 6, 5));
  EXPECT_EQ(cache.counts().asked, 3);
  EXPECT_EQ(cache.counts().found, 1);
}

TEST(ExpertCache, WhatIsAskedForTogetherStaysTogether) {
  ExpertCache cache(4, 2, 1e-6);
  cache.take(uses({0, 1}), 1);
  // 0 is the older one, but wanted: 1 goes.
  EXPECT_THAT(cache.take(uses({0, 3}), 1), ElementsAre(Place{0, 0, false}, Place{3, 1, true}));
}

TEST(ExpertCache, AFastDecayKeepsTheLatestASlowOneTheMostUsed) {
  for (const bool is_fast : {true, false}) {
    ExpertCache cache(4, 2, is_fast ? 1e-9 : 1);
    for (int i = 0; i < 5; ++i) cache.take(uses({0}), 1);
    cache.take(uses({1}), 1);
    const auto places = cache.take(uses({2}), 1);
    EXPECT_EQ(cache.slot_of(is_fast ? 0 : 1), -1) << is_fast;
    EXPECT_EQ(cache.slot_of(is_fast ? 1 : 0), is_fast ? 1 : 0);
    EXPECT_TRUE(places.front().is_load);
  }
}

TEST(ExpertCache, HoldsWhatItIsTold) {
  ExpertCache cache(6, 3, 0.9);
  cache.hold(std::vector<int32_t>{2, 5});
  EXPECT_THAT(cache.held(), ElementsAre(2, 5, 0));
  EXPECT_EQ(cache.slot_of(1), -1);
  EXPECT_EQ(cache.slot_of(0), 2);
  EXPECT_EQ(cache.counts().asked, 0);
}

TEST(ExpertCache, SaysWhoIsWorthMost) {
  ExpertCache cache(6, 3, 0.9);
  cache.take(uses({4}), 1);
  cache.take(uses({4}), 1);
  cache.take(uses({1}), 1);
  EXPECT_THAT(cache.by_worth(), ElementsAre(4, 1, 0)) << "0 was never asked for";
  ExpertCache next(6, 2, 0.9);
  next.hold(std::vector<int32_t>{4, 1});
  next.take(uses({5}), 1);
  EXPECT_THAT(next.held(), ElementsAre(4, 5)) << "the last goes first";
}

// Against the plain definition: sums of decayed uses, all kept.
TEST(ExpertCache, ForgetsTheLeastSumOfDecayedUses) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int32_t experts = 2 + static_cast<int32_t>(random() % 20);
    const int64_t slots = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(experts));
    const double decay = std::array{1.0, 0.99, 0.9, 0.5, 0.01}[random() % 5];
    ExpertCache cache(experts, slots, decay);
    std::map<int32_t, std::vector<std::pair<int64_t, int32_t>>> history;
    int64_t now = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      for (int32_t e = 0; e < experts; ++e) all[static_cast<size_t>(e)] = e;
      std::shuffle(all.begin(), all.end(), random);
      std::vector<Use> asked;
      const auto count = 1 + random() % static_cast<uint64_t>(slots);
      for (size_t i = 0; i < count; ++i)
        asked.push_back({all[i], 1 + static_cast<int32_t>(random() % 3)});
      const int64_t tokens = 1 + static_cast<int64_t>(random() % 4);
      const std::vector<int32_t> before(cache.held().begin(), cache.held().end());
      now += tokens;
      for (const Use& one : asked) history[one.expert].push_back({now, one.tokens});
      const auto places = cache.take(asked, tokens);
      const auto worth = [&](int32_t expert) {
        double sum = 0;
        for (const auto& [at, uses] : history[expert])
          sum += uses * std::pow(decay, static_cast<double>(now - at));
        return sum;
      };
      double most_gone = 0, least_kept = 1e300;
      for (const int32_t expert : before) {
        const bool is_wanted = std::any_of(asked.begin(), asked.end(),
                                           [&](const Use& one) { return one.expert == expert; });
        if (cache.slot_of(expert) < 0) {
          EXPECT_FALSE(is_wanted);
          most_gone = std::max(most_gone, worth(expert));
        } else if (!is_wanted) {
          least_kept = std::min(least_kept, worth(expert));
        }
      }
      EXPECT_LE(most_gone, least_kept * (1 + 1e-9));
      for (size_t i = 0; i < asked.size(); ++i) {
        EXPECT_EQ(places[i].expert, asked[i].expert);
        EXPECT_EQ(cache.slot_of(asked[i].expert), places[i].slot);
        EXPECT_EQ(cache.held()[static_cast<size_t>(places[i].slot)], asked[i].expert);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
