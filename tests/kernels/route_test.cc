// Routers against the reference, on scores that are far enough apart; ties and what is no number by
// rule; rows grouped by expert and added up again.
#include "kernels/route.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

using Scores = RouterSpec::Scores;
using Worth = RouterSpec::GroupWorth;

RouterSpec softmax_of(int64_t experts, int64_t chosen) {
  RouterSpec spec;
  spec.experts = experts;
  spec.chosen = chosen;
  return spec;
}

std::vector<RouterSpec> specs() {
  std::vector<RouterSpec> out{softmax_of(1, 1),   softmax_of(2, 1),    softmax_of(5, 5),
                              softmax_of(60, 4),  softmax_of(64, 8),   softmax_of(7, 3),
                              softmax_of(256, 8), softmax_of(1024, 22)};
  for (const auto& [experts, chosen, groups, kept] : {std::array<int64_t, 4>{8, 3, 4, 2},
                                                      {9, 4, 3, 2},
                                                      {256, 8, 8, 4},
                                                      {160, 6, 8, 3},
                                                      {6, 2, 6, 2},
                                                      {12, 12, 3, 3}}) {
    RouterSpec spec = softmax_of(experts, chosen);
    spec.groups = groups;
    spec.kept_groups = kept;
    spec.others_count_zero = true;
    spec.scale = 16;
    out.push_back(spec);
    spec.scores = Scores::kSigmoid;
    spec.worth = Worth::kTwoBest;
    spec.others_count_zero = false;
    spec.renormalises = true;
    spec.eps = 1e-20f;
    spec.scale = 2.5f;
    out.push_back(spec);
  }
  RouterSpec of_chosen = softmax_of(32, 4);
  of_chosen.scores = Scores::kAsTheyAre;
  of_chosen.is_softmax_of_chosen = true;
  out.push_back(of_chosen);
  of_chosen.is_softmax_of_chosen = false;
  of_chosen.is_sigmoid_of_chosen = true;
  out.push_back(of_chosen);
  RouterSpec renormalised = softmax_of(8, 2);
  renormalised.renormalises = true;
  out.push_back(renormalised);
  renormalised.score_scale = 0.3f;
  renormalised.vector_scales = true;
  out.push_back(renormalised);
  return out;
}

TEST(Route, ChoosesAndWeighsAsTheReference) {
  for (const RouterSpec& spec : specs())
    for (const int64_t rows : {1, 3, 130}) {
      Random random(static_cast<uint32_t>(spec.experts + rows));
      SCOPED_TRACE(random.trace() + ", " + std::to_string(spec.experts) + " experts, " +
                   std::to_string(spec.groups) + " groups");
      const int64_t stride = spec.experts + 3;
      const auto x = random.normal(rows * stride, 2);
      const auto correction = random.normal(spec.experts, 0.4f);
      for (const float* corrected : {static_cast<const float*>(nullptr), correction.data()}) {
        const auto count = static_cast<size_t>(rows * spec.chosen);
        std::vector<RoutedTo> ours(count), expected(count);
        route(spec, x.data(), stride, rows, corrected, ours.data());
        reference::route(spec, x.data(), stride, rows, corrected, expected.data());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(ours[i].expert, expected[i].expert) << "choice " << i;
          ASSERT_NEAR(ours[i].weight, expected[i].weight,
                      2e-5 * std::abs(expected[i].weight) + 1e-7);
        }
      }
    }
}

TEST(Route, OfEqualScoresTheFirstAreChosen) {
  const std::vector<float> x{1, 3, 3, 0, 3, 1};
  std::vector<RoutedTo> to(2);
  route(softmax_of(6, 2), x.data(), 6, 1, nullptr, to.data());
  EXPECT_EQ(to[0].expert, 1);
  EXPECT_EQ(to[1].expert, 2);
}

TEST(Route, WhatIsNoNumberIsChosenLast) {
  RouterSpec spec = softmax_of(4, 2);
  spec.scores = Scores::kAsTheyAre;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{nan, 1, nan, -5};
  std::vector<RoutedTo> to(2);
  route(spec, x.data(), 4, 1, nullptr, to.data());
  EXPECT_EQ(to[0].expert, 1);
  EXPECT_EQ(to[1].expert, 3);
}

// The correction says who is chosen, and nothing of the weights.
TEST(Route, CorrectsChoicesAlone) {
  RouterSpec spec = softmax_of(3, 1);
  spec.scores = Scores::kSigmoid;
  const std::vector<float> x{2, 0, -2}, correction{0, 0, 1};
  RoutedTo to;
  route(spec, x.data(), 3, 1, correction.data(), &to);
  EXPECT_EQ(to.expert, 2);
  EXPECT_NEAR(to.weight, 1 / (1 + std::exp(2.0)), 1e-6);
}

TEST(Route, GroupsRowsByExpertInTheirOrder) {
  for (const auto& [rows, chosen, experts] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 3, 8}, {40, 2, 5}, {130, 4, 60}, {7, 5, 5}}) {
    Random random(static_cast<uint32_t>(rows));
    RouterSpec spec = softmax_of(experts, chosen);
    const auto x = random.normal(rows * experts);
    std::vector<RoutedTo> choices(static_cast<size_t>(rows * chosen));
    route(spec, x.data(), experts, rows, nullptr, choices.data());
    std::vector<int32_t> list(choices.size()), begin(static_cast<size_t>(experts) + 1);
    std::vector<float> weights(choices.size());
    group_by_expert(choices.data(), rows, chosen, experts, {list, weights, begin});
    ASSERT_EQ(begin.front(), 0);
    ASSERT_EQ(begin.back(), rows * chosen);
    size_t at = 0;
    for (int32_t e = 0; e < experts; ++e) {
      ASSERT_EQ(static_cast<size_t>(begin[static_cast<size_t>(e)]), at);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < chosen; ++i) {
          const RoutedTo& choice = choices[static_cast<size_t>(row * chosen + i)];
          if (choice.expert != e) continue;
          ASSERT_EQ(list[at], row);
          ASSERT_EQ(weights[at], choice.weight);
          ++at;
        }
    }
    ASSERT_EQ(at, choices.size());
  }
}

TEST(Route, AddsWeightedRowsAsTheReference) {
  Random random(3);
  for (const int64_t cols : {1, 7, 64, 513})
    for (const bool has_ids : {false, true}) {
      constexpr int64_t kRows = 9, kAll = 20;
      const auto x = random.normal(kRows * (cols + 2)), weights = random.normal(kRows * 2);
      auto y = random.normal(kAll * (cols + 1));
      auto expected = y;
      std::vector<int32_t> ids(kAll);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
      std::shuffle(ids.begin(), ids.end(), random.engine());
      const int32_t* which = has_ids ? ids.data() : nullptr;
      add_weighted_rows(x.data(), cols + 2, which, weights.data(), 2, y.data(), cols + 1, kRows,
                        cols);
      reference::add_weighted_rows(x.data(), cols + 2, which, weights.data(), 2, expected.data(),
                                   cols + 1, kRows, cols);
      EXPECT_EQ(y, expected);
    }
}

}  // namespace
}  // namespace sluice::kernels
