// What made-up routers (src/base/synthetic_routing.h) have in common with the measured run that
// they were fitted to: 6 of 128 experts, tokens that follow each other, caches, stretches.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "src/base/synthetic_routing.h"
#include "src/cache/routing_figures.h"
#include "src/cache/routing_replay.h"

namespace sluice {
namespace {

constexpr int64_t kExperts = 128, kTokens = 400;

// `layers` layers behind the first tenth of a model, one sequence of decoded tokens.
RoutingTrace trace_of(SyntheticRouting::Kind kind, int64_t chosen, int64_t layers) {
  RoutingTrace trace;
  trace.experts = kExperts;
  trace.chosen = chosen;
  std::mt19937 random(17);
  std::vector<int32_t> ids(kTokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 150000);
  std::vector<float> scores(kTokens * kExperts);
  std::vector<int32_t> order(kExperts);
  for (int64_t l = 0; l < layers; ++l) {
    fill_synthetic_scores(SyntheticRouting::of(kind, 1), {10 + l, 48, kExperts}, {ids, 0, kTokens},
                          scores.data(), kExperts);
    RoutingTrace::Layer& layer = trace.layers.emplace_back();
    for (int64_t t = 0; t < kTokens; ++t) {
      const float* const z = scores.data() + t * kExperts;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + chosen, order.end(),
                        [&](int32_t a, int32_t b) { return z[a] > z[b]; });
      layer.tokens.push_back({0, t, t, false, static_cast<int32_t>(chosen), layer.experts.size()});
      layer.experts.insert(layer.experts.end(), order.begin(), order.begin() + chosen);
    }
  }
  return trace;
}

TEST(SyntheticTrace, IsAsStickyAsAMeasuredRun) {
  const RoutingTrace trace = trace_of(SyntheticRouting::Kind::kSticky, 6, 24);
  const RoutingFigures figures = routing_figures(trace, RoutedTokens::kDecoded);
  // Measured (Qwen3-30B-A3B): .380, .289, .267; in the last 4 .61, in the last 8 .74.
  EXPECT_NEAR(figures.overlap[0], 0.380, 0.03);
  EXPECT_NEAR(figures.overlap[1], 0.289, 0.04);
  EXPECT_NEAR(figures.overlap[2], 0.267, 0.04);
  EXPECT_NEAR(figures.seen[0], 0.61, 0.04);
  EXPECT_NEAR(figures.seen[1], 0.74, 0.04);
  EXPECT_NEAR(figures.distinct[2], 75, 10);
  EXPECT_NEAR(figures.entropy, 0.78, 0.06);
}

TEST(SyntheticTrace, CachesFindWhatTheyFindOnAMeasuredRun) {
  const RoutingTrace trace = trace_of(SyntheticRouting::Kind::kSticky, 6, 12);
  const std::vector<std::pair<int64_t, double>> measured{{6, 0.28},  {12, 0.49}, {18, 0.63},
                                                         {24, 0.71}, {36, 0.83}, {48, 0.89}};
  for (const auto& [slots, hits] : measured) {
    ReplayOptions options;
    options.slots = slots;
    options.is_one_by_one = true;
    EXPECT_NEAR(replay_cache(trace, options, 0).hit_rate(), hits, 0.05) << slots;
  }
}

TEST(SyntheticTrace, AFlatOneFindsLess) {
  ReplayOptions options;
  options.slots = 24;
  const auto hits = [&](SyntheticRouting::Kind kind) {
    return replay_cache(trace_of(kind, 6, 4), options, 0).hit_rate();
  };
  EXPECT_LT(hits(SyntheticRouting::Kind::kFlat), hits(SyntheticRouting::Kind::kSticky) - 0.15);
}

}  // namespace
}  // namespace sluice
