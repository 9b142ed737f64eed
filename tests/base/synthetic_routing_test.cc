// Scores of made-up routers: what they depend on, and their first and second moments. That caches
// find on them what they find on measured routing: tests/cache/synthetic_trace_test.cc.
#include "src/base/synthetic_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sluice {
namespace {

std::vector<int32_t> random_ids(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 32000);
  return ids;
}

std::vector<float> scores_of(const SyntheticRouting& routing, int64_t layer, int64_t experts,
                             const SyntheticTokens& tokens) {
  std::vector<float> out(static_cast<size_t>(tokens.count * experts));
  fill_synthetic_scores(routing, {layer, 40, experts}, tokens, out.data(), experts);
  return out;
}

// However a sequence is cut, and whatever comes behind it.
TEST(SyntheticRouting, ATokensScoresDependOnNothingBehindIt) {
  const auto routing = SyntheticRouting::of(SyntheticRouting::Kind::kSticky, 3);
  for (const int64_t experts : {1, 3, 8, 60, 128}) {
    const auto ids = random_ids(40, 5);
    const auto whole = scores_of(routing, 7, experts, {ids, 0, 40});
    for (const int64_t step : {1, 3, 7, 16}) {
      std::vector<float> cut(whole.size());
      for (int64_t at = 0; at < 40; at += step) {
        const int64_t count = std::min<int64_t>(step, 40 - at);
        const auto known = std::span(ids).first(static_cast<size_t>(at + count));
        fill_synthetic_scores(routing, {7, 40, experts}, {known, at, count},
                              cut.data() + at * experts, experts);
      }
      EXPECT_EQ(cut, whole) << experts << " experts, " << step << " at a time";
    }
  }
}

// As often as the next layer's router is on the rows of this one.
TEST(SyntheticRouting, AGuessFindsSevenOfEight) {
  const auto routing = SyntheticRouting::of(SyntheticRouting::Kind::kSticky, 3);
  constexpr int64_t kExperts = 128, kTokens = 400;
  constexpr size_t kChosen = 8;
  const auto ids = random_ids(kTokens, 9);
  const auto best = [&](const std::vector<float>& scores, int64_t token) {
    std::vector<int> order(kExperts);
    for (int e = 0; e < kExperts; ++e) order[static_cast<size_t>(e)] = e;
    const float* const of = scores.data() + token * kExperts;
    std::sort(order.begin(), order.end(), [&](int a, int b) { return of[a] > of[b]; });
    order.resize(kChosen);
    std::sort(order.begin(), order.end());
    return order;
  };
  const auto scores = scores_of(routing, 20, kExperts, {ids, 0, kTokens});
  std::vector<float> guessed(scores.size());
  fill_guessed_scores(routing, {20, 40, kExperts}, {ids, 0, kTokens}, guessed.data(), kExperts);
  size_t right = 0;
  for (int64_t token = 0; token < kTokens; ++token) {
    std::vector<int> both;
    const auto one = best(scores, token), other = best(guessed, token);
    std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                          std::back_inserter(both));
    right += both.size();
  }
  EXPECT_NEAR(static_cast<double>(right) / (kTokens * kChosen), 0.886, 0.02);
}

TEST(SyntheticRouting, RowsMayLieApart) {
  const auto routing = SyntheticRouting::of(SyntheticRouting::Kind::kFlat, 3);
  const auto ids = random_ids(9, 1);
  const auto close = scores_of(routing, 0, 5, {ids, 2, 7});
  std::vector<float> apart(7 * 8, -1);
  fill_synthetic_scores(routing, {0, 40, 5}, {ids, 2, 7}, apart.data(), 8);
  for (size_t i = 0; i < 7; ++i)
    for (size_t e = 0; e < 8; ++e) EXPECT_EQ(apart[i * 8 + e], e < 5 ? close[i * 5 + e] : -1.0f);
}

// Seeds, layers, and what came before make a difference.
TEST(SyntheticRouting, OthersHaveOtherScores) {
  const auto sticky = [](uint64_t seed) {
    return SyntheticRouting::of(SyntheticRouting::Kind::kSticky, seed);
  };
  auto ids = random_ids(20, 9);
  const auto one = scores_of(sticky(1), 7, 16, {ids, 19, 1});
  EXPECT_EQ(one, scores_of(sticky(1), 7, 16, {ids, 19, 1}));
  EXPECT_NE(one, scores_of(sticky(2), 7, 16, {ids, 19, 1}));
  EXPECT_NE(one, scores_of(sticky(uint64_t{1} << 32 | 1), 7, 16, {ids, 19, 1}));
  EXPECT_NE(one, scores_of(sticky(1), 8, 16, {ids, 19, 1}));
  EXPECT_NE(one,
            scores_of(SyntheticRouting::of(SyntheticRouting::Kind::kFlat, 1), 7, 16, {ids, 19, 1}));
  for (const size_t changed : {0u, 7u, 14u, 18u, 19u}) {
    auto other = ids;
    other[changed] += 1;
    EXPECT_NE(one, scores_of(sticky(1), 7, 16, {other, 19, 1})) << changed;
  }
  auto far = ids;  // neither of the first nor of the last
  far[10] += 1;
  EXPECT_EQ(one, scores_of(sticky(1), 7, 16, {far, 19, 1}));
}

// Of many: the mean is 0, the variance the formula's, and what a token has from the one before it.
TEST(SyntheticRouting, HasTheMomentsOfItsFormula) {
  const auto routing = SyntheticRouting::of(SyntheticRouting::Kind::kSticky, 11);
  constexpr int64_t kExperts = 128, kTokens = 60, kSequences = 40;
  const auto moments = [&](int64_t layer) {
    double sum = 0, squares = 0, steps = 0;
    int64_t pairs = 0;
    for (uint32_t s = 0; s < kSequences; ++s) {
      const auto ids = random_ids(kTokens, 100 + s);
      const auto z = scores_of(routing, layer, kExperts, {ids, 0, kTokens});
      for (size_t i = 0; i < z.size(); ++i) {
        sum += z[i];
        squares += double{z[i]} * z[i];
        if (i >= static_cast<size_t>(9 * kExperts)) {
          const double step = z[i] - z[i - kExperts];
          steps += step * step;
          ++pairs;
        }
      }
    }
    const double count = kExperts * kTokens * kSequences;
    return std::array{sum / count, squares / count, steps / static_cast<double>(pairs)};
  };
  const double shared = 1.09 * 1.09 + 1.52 * 1.52, own = 1.37 * 1.37;
  const auto [mean, square, step] = moments(20);
  EXPECT_NEAR(mean, 0, 0.15);  // 128 experts all sequences like, or not
  EXPECT_NEAR(square, shared + own + 1, 0.35);
  EXPECT_NEAR(step, 2 * (own * (1 - 0.53) + 1), 0.05);
  const auto first = moments(3);  // of 40: flatter
  EXPECT_NEAR(first[1], shared / 4 + own + 1, 0.25);
  EXPECT_NEAR(first[2], step, 0.05);
  EXPECT_NEAR(moments(4)[1], square, 0.7);
}

}  // namespace
}  // namespace sluice
