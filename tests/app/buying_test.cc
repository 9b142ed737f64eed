// What a machine runs, and what to change of it: held against single searches.
#include "src/app/buying.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/planning_shapes.h"

namespace sluice::app {
namespace {

policy::Profile machine(const char* name) { return *policy::shipped_profile(name); }

// Tokens a second of one user, by the search itself.
double one_user(const policy::Profile& profile, const ModelShape& model, int64_t host_bytes = 0) {
  PlanQuestion asked;
  asked.model = &model;
  asked.profile = &profile;
  asked.host_bytes = host_bytes;
  asked.job = {.sequences = 1, .prompt_tokens = 512, .new_tokens = 32};
  asked.objective = policy::Objective::kLatency;
  const policy::SearchRequest request = plan_request(asked);
  return job_tokens_per_second(policy::search_policy(request).best, request.job);
}

TEST(Buying, PricesAreOfAnHourOrOfWhatTheMachineDraws) {
  EXPECT_DOUBLE_EQ(parse_hour_price("0.60/h"), 0.6);
  EXPECT_DOUBLE_EQ(parse_hour_price("0/h"), 0);
  EXPECT_DOUBLE_EQ(parse_hour_price("450W@0.30/kWh"), 0.135);
  EXPECT_DOUBLE_EQ(price_of_million(0.36, 100), 1);
  for (const char* bad : {"", "0.6", "/h", "-1/h", "nan/h", "450W", "450W@0.3", "450W@/kWh",
                          "W@0.3/kWh", "1/hour", "inf/h", "450 W@0.3/kWh/h"})
    EXPECT_THROW(parse_hour_price(bad), Error) << bad;
}

TEST(Buying, FitsAreWhatSearchesFindTheLargestFirst) {
  const policy::Profile profile = machine("rtx-3060");
  FitsQuestion question;
  question.profile = &profile;
  question.job = {.sequences = 1, .prompt_tokens = 512, .new_tokens = 32};
  question.models = {"qwen2.5-7b", "gpt-oss-120b", "gpt2", "llama-3.1-70b"};
  question.formats = {parse_weight_format("int4"), std::nullopt};
  question.together = 4;
  std::vector<Fit> fits;
  find_fits(question, {}, [&](const Fit& fit) { fits.push_back(fit); });
  ASSERT_EQ(fits.size(), 8u);
  const char* order[] = {"gpt-oss-120b", "llama-3.1-70b", "qwen2.5-7b", "gpt2"};
  for (size_t i = 0; i < fits.size(); ++i) {
    SCOPED_TRACE(fits[i].model + " " + fits[i].weights);
    EXPECT_EQ(fits[i].model, order[i / 2]);
    if (!fits[i].refusal.empty()) {
      EXPECT_EQ(fits[i].one_user, 0);
      continue;
    }
    ModelShape model = *planning_shape(fits[i].model);
    if (i % 2 == 0) model.set_weights(*parse_weight_format("int4"));
    EXPECT_DOUBLE_EQ(fits[i].one_user, one_user(profile, model));
    EXPECT_NEAR(fits[i].placed.total(), static_cast<double>(fits[i].weight_bytes),
                0.01 * static_cast<double>(fits[i].weight_bytes));
    EXPECT_GE(fits[i].together, 0.99 * fits[i].one_user);  // four users are not fewer tokens
  }
  question.at_least = fits[4].one_user;  // qwen2.5-7b in int4
  const size_t all = fits.size();
  size_t fast = 0;
  for (const Fit& fit : fits) fast += fit.one_user >= question.at_least;
  fits.clear();
  find_fits(question, {}, [&](const Fit& fit) { fits.push_back(fit); });
  EXPECT_EQ(fits.size(), fast);
  EXPECT_LT(fits.size(), all);
}

class Target : public ::testing::Test {
 protected:
  Target() : profile_(machine("rtx-3060")), model_(*planning_shape("llama-3.1-70b")) {
    question_.question.model = &model_;
    question_.question.profile = &profile_;
    question_.question.job = {.sequences = 1, .prompt_tokens = 512, .new_tokens = 32};
    question_.question.objective = policy::Objective::kLatency;
  }
  TargetAnswer find(double rate) {
    question_.tokens_per_second = rate;
    return find_target(question_, {});
  }

  policy::Profile profile_;
  ModelShape model_;
  TargetQuestion question_;
};

TEST_F(Target, NothingChangesWhereItIsFastEnough) {
  const TargetAnswer answer = find(1e-6);
  EXPECT_DOUBLE_EQ(answer.as_it_is, one_user(profile_, model_));
  EXPECT_TRUE(answer.changes.empty());
}

TEST_F(Target, EachChangeIsTheSmallestThatReachesIt) {
  model_.set_weights(*parse_weight_format("int4"));
  const double now = one_user(profile_, model_);
  const TargetAnswer answer = find(now * 1.5);
  EXPECT_DOUBLE_EQ(answer.as_it_is, now);
  ASSERT_FALSE(answer.changes.empty());
  int memories = 0;
  for (const Change& change : answer.changes) {
    EXPECT_GE(change.tokens_per_second, now * 1.5);
    ASSERT_LE(change.parts.size(), 2u);
    if (change.parts.size() > 1 || change.parts[0].kind != ChangedPart::Kind::kMemory) continue;
    ++memories;
    int64_t bytes = 0;
    for (const int64_t gib : {1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8})
      if (gib * kGiB > profile_.host_bytes * 9 / 8 &&
          one_user(profile_, model_, gib * kGiB) >= now * 1.5)
        bytes = gib;
    EXPECT_EQ(change.parts[0].what, std::to_string(bytes) + "GiB of memory");
  }
  EXPECT_LE(memories, 1);
}

TEST_F(Target, PricesPutTheCheapestFirst) {
  model_.set_weights(*parse_weight_format("int4"));
  question_.prices = {{"memory", 4}, {"rtx-4090", 1500}, {"rtx-5090", 2500}, {"rtx-3090", 700}};
  const TargetAnswer answer = find(one_user(profile_, model_) * 1.5);
  double last = 0;
  bool has_unpriced = false;
  for (const Change& change : answer.changes) {
    const auto price = change.price();
    has_unpriced |= !price;
    if (!price) continue;
    EXPECT_FALSE(has_unpriced) << "what has no price comes last";
    EXPECT_GE(*price, last);
    last = *price;
  }
  EXPECT_GT(last, 0);
}

TEST_F(Target, WhatNothingReachesHasNoChanges) {
  model_ = *planning_shape("qwen2.5-0.5b");
  EXPECT_TRUE(find(1e6).changes.empty());
}

}  // namespace
}  // namespace sluice::app
