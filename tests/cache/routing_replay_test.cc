#include "src/cache/routing_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>

#include "tests/cache/routing_files.h"

namespace sluice {
namespace {

// Rows of published replays of these runs, slots a layer being so many times what a token chooses:
// decoded tokens from an empty cache, one expert after the other.
struct Published {
  const char* name;
  int64_t chosen;
  std::vector<double> lru, decayed, best;
};
const std::vector<int64_t> kTimes = {1, 2, 3, 4, 6, 8};
const std::vector<Published> kPublished = {{"qwen",
                                            6,
                                            {.28, .49, .63, .71, .83, .89},
                                            {.33, .52, .65, .74, .84, .89},
                                            {.53, .70, .79, .84, .90, .91}},
                                           {"gemma",
                                            6,
                                            {.26, .49, .62, .70, .80, .87},
                                            {.34, .53, .64, .72, .81, .87},
                                            {.53, .70, .78, .83, .88, .91}},
                                           {"gptoss",
                                            2,
                                            {.15, .31, .43, .49, .57, .63},
                                            {.18, .34, .44, .50, .58, .63},
                                            {.37, .53, .60, .64, .69, .72}}};

TEST(RoutingReplay, FindsWhatOthersFoundOnRecordedRuns) {
  for (const Published& published : kPublished) {
    const RoutingTrace trace = routing_file(published.name);
    for (size_t i = 0; i < kTimes.size(); ++i) {
      ReplayOptions options;
      options.slots = published.chosen * kTimes[i];
      options.is_one_by_one = true;
      EXPECT_NEAR(replay_cache(trace, options, 0).hit_rate(), published.lru[i], 0.01)
          << published.name << " LRU " << options.slots;
      EXPECT_NEAR(replay_cache(trace, options, 0.9).hit_rate(), published.decayed[i], 0.01)
          << published.name << " decayed " << options.slots;
      EXPECT_NEAR(replay_best(trace, options).hit_rate(), published.best[i], 0.01)
          << published.name << " best " << options.slots;
    }
  }
}

// A run of any shape: passes of 1 to `most` tokens.
RoutingTrace random_trace(std::mt19937& random, int64_t experts, int64_t most) {
  RoutingTrace trace;
  trace.experts = experts;
  trace.layers.resize(1 + random() % 3);
  for (RoutingTrace::Layer& layer : trace.layers) {
    for (int64_t pass = 0; pass < 60; ++pass) {
      const auto tokens = 1 + random() % static_cast<uint64_t>(most);
      for (uint64_t t = 0; t < tokens; ++t) {
        RoutingTrace::Token token;
        token.sequence = static_cast<int64_t>(t);
        token.position = pass;
        token.pass = pass;
        token.is_prompt = random() % 8 == 0;
        token.first = layer.experts.size();
        std::set<int32_t> chosen;
        const auto count = 1 + random() % static_cast<uint64_t>(std::min<int64_t>(experts, 4));
        // Squared: low numbers come more often.
        while (chosen.size() < count) {
          const double u = std::uniform_real_distribution<double>(0, 1)(random);
          chosen.insert(static_cast<int32_t>(u * u * static_cast<double>(experts)));
        }
        token.chosen = static_cast<int32_t>(count);
        layer.experts.insert(layer.experts.end(), chosen.begin(), chosen.end());
        layer.tokens.push_back(token);
      }
    }
  }
  return trace;
}

// LRU as everybody writes it: a list, the latest in front.
int64_t found_by_list(const RoutingTrace& trace, int64_t slots) {
  int64_t found = 0;
  for (const RoutingTrace::Layer& layer : trace.layers) {
    std::list<int32_t> held;
    for (const int32_t expert : layer.experts) {
      const auto at = std::find(held.begin(), held.end(), expert);
      if (at != held.end()) {
        ++found;
        held.erase(at);
      } else if (std::ssize(held) == slots) {
        held.pop_back();
      }
      held.push_front(expert);
    }
  }
  return found;
}

TEST(RoutingReplay, WithoutMemoryItIsLru) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const int64_t experts = 2 + random() % 30;
    const RoutingTrace trace = random_trace(random, experts, 4);
    ReplayOptions options;
    options.slots = 1 + random() % static_cast<uint64_t>(experts);
    options.tokens = RoutedTokens::kAll;
    options.is_one_by_one = true;
    EXPECT_EQ(replay_cache(trace, options, 0).all.found, found_by_list(trace, options.slots));
  }
}

// The most that can be found, by trying everything: which of those held and asked for stay.
int64_t most_found(const std::vector<std::set<int32_t>>& asks, size_t at,
                   const std::set<int32_t>& held, int64_t slots) {
  if (at == asks.size()) return 0;
  int64_t found = 0;
  std::set<int32_t> both = held;
  for (const int32_t expert : asks[at]) {
    found += static_cast<int64_t>(held.count(expert));
    both.insert(expert);
  }
  const std::vector<int32_t> list(both.begin(), both.end());
  int64_t best = 0;
  for (uint32_t mask = 0; mask < (1u << list.size()); ++mask) {
    std::set<int32_t> kept;
    for (size_t i = 0; i < list.size(); ++i)
      if (mask >> i & 1) kept.insert(list[i]);
    const bool is_full = std::ssize(kept) == std::min<int64_t>(slots, std::ssize(list));
    if (is_full) best = std::max(best, most_found(asks, at + 1, kept, slots));
  }
  return found + best;
}

TEST(RoutingReplay, NoCacheFindsMoreThanTheBest) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int64_t experts = 2 + random() % 4;
    RoutingTrace trace;
    trace.experts = experts;
    trace.layers.resize(1);
    std::vector<std::set<int32_t>> asks;
    for (int64_t pass = 0; pass < 7; ++pass) {
      std::set<int32_t>& ask = asks.emplace_back();
      for (auto tokens = 1 + random() % 2; tokens > 0; --tokens) {
        const auto expert = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
        trace.layers[0].tokens.push_back({0, pass, pass, false, 1, trace.layers[0].experts.size()});
        trace.layers[0].experts.push_back(expert);
        ask.insert(expert);
      }
    }
    ReplayOptions options;
    options.slots = static_cast<int64_t>(random() % 4);
    EXPECT_EQ(replay_best(trace, options).all.found,
              most_found(asks, 0, {}, std::min(options.slots, experts)));
  }
}

TEST(RoutingReplay, TheBestIsAtLeastWhatAnyDecayFinds) {
  std::mt19937 random(6);
  for (int round = 0; round < 50; ++round) {
    const int64_t experts = 1 + random() % 40;
    const RoutingTrace trace = random_trace(random, experts, 6);
    ReplayOptions options;
    options.slots = random() % static_cast<uint64_t>(experts + 3);
    options.is_one_by_one = random() % 2 == 0;
    options.is_cold = random() % 2 == 0;
    options.tokens = std::array{RoutedTokens::kAll, RoutedTokens::kDecoded,
                                RoutedTokens::kPrompts}[random() % 3];
    const ReplayResult best = replay_best(trace, options);
    for (const double decay : {0.0, 0.5, 0.99, 1.0}) {
      const ReplayResult found = replay_cache(trace, options, decay);
      EXPECT_EQ(found.all.asked, best.all.asked);
      EXPECT_LE(found.all.found, best.all.found) << options.slots << " of " << experts;
      EXPECT_EQ(found.layers.size(), trace.layers.size());
    }
    if (options.slots >= experts && !options.is_cold) {
      EXPECT_EQ(best.all.found, best.all.asked);
    }
    if (options.slots == 0) {
      EXPECT_EQ(best.all.found, 0);
    }
  }
}

// A pass asks for each expert once, whoever of its tokens wants it.
TEST(RoutingReplay, APassAsksTogether) {
  RoutingTrace trace;
  trace.experts = 4;
  trace.layers.resize(1);
  RoutingTrace::Layer& layer = trace.layers[0];
  layer.experts = {0, 1, 1, 2, 0, 1};
  for (size_t t = 0; t < 3; ++t)
    layer.tokens.push_back({static_cast<int64_t>(t), 0, t < 2 ? 0 : 1, false, 2, 2 * t});
  ReplayOptions options;
  options.slots = 4;
  EXPECT_EQ(replay_cache(trace, options, 1).all.asked, 5);  // {0, 1, 2}, {0, 1}
  EXPECT_EQ(replay_cache(trace, options, 1).all.found, 2);
  options.is_cold = false;
  EXPECT_EQ(replay_cache(trace, options, 1).all.found, 5);
  options.is_one_by_one = true;
  EXPECT_EQ(replay_cache(trace, options, 1).all.asked, 6);
}

// An engine that asks so has the same counts.
TEST(RoutingReplay, CountsAsACacheThatIsAskedSo) {
  std::mt19937 random(8);
  const RoutingTrace trace = random_trace(random, 24, 3);
  ReplayOptions options;
  options.slots = 12;
  options.is_cold = false;
  options.tokens = RoutedTokens::kAll;
  const ReplayResult replayed = replay_cache(trace, options, 0.8);
  for (size_t l = 0; l < trace.layers.size(); ++l) {
    ExpertCache cache(24, 12, 0.8);
    const RoutingTrace::Layer& layer = trace.layers[l];
    for (size_t t = 0; t < layer.tokens.size();) {
      std::vector<int32_t> uses(24);
      const int64_t pass = layer.tokens[t].pass;
      int64_t tokens = 0;
      for (; t < layer.tokens.size() && layer.tokens[t].pass == pass; ++t, ++tokens)
        for (int32_t i = 0; i < layer.tokens[t].chosen; ++i)
          ++uses[static_cast<size_t>(
              layer.experts[layer.tokens[t].first + static_cast<size_t>(i)])];
      std::vector<ExpertCache::Use> asked;
      for (int32_t e = 0; e < 24; ++e)
        if (uses[static_cast<size_t>(e)] > 0) asked.push_back({e, uses[static_cast<size_t>(e)]});
      cache.take(asked, tokens);
    }
    EXPECT_EQ(replayed.layers[l].asked, cache.counts().asked);
    EXPECT_EQ(replayed.layers[l].found, cache.counts().found);
  }
}

// Slots for fewer experts than a token wants: what is there is found, the rest in portions.
TEST(RoutingReplay, AsksForMoreThanThereAreSlotsInPortions) {
  RoutingTrace trace;
  trace.experts = 6;
  trace.layers.resize(1);
  for (int64_t t = 0; t < 2; ++t) {
    trace.layers[0].tokens.push_back({0, t, t, false, 4, static_cast<size_t>(4 * t)});
    for (const int32_t expert : {0, 1, 2, 3}) trace.layers[0].experts.push_back(expert);
  }
  ReplayOptions options;
  options.slots = 2;  // {0, 1}, then {2, 3} in their place; of the second token 2 and 3 are there
  EXPECT_EQ(replay_cache(trace, options, 0.5).all.found, 2);
  EXPECT_EQ(replay_cache(trace, options, 0).all.found, 2);
}

TEST(RoutingReplay, TheBestDecayIsTheFastestOfThoseThatFindMost) {
  const RoutingTrace trace = routing_file("gptoss");
  ReplayOptions options;
  options.slots = 4;
  const BestDecay best = find_best_decay(trace, options, {1, 0.9, 0.5, 0});
  for (const double decay : {1.0, 0.9, 0.5, 0.0})
    EXPECT_LE(replay_cache(trace, options, decay).hit_rate(), best.hit_rate);
  options.slots = 128;  // all find all but the first uses
  EXPECT_EQ(find_best_decay(trace, options, {1, 0.9, 0}).decay, 0);
}

}  // namespace
}  // namespace sluice
