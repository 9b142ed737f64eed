// The straight way in: the plan that was found is the plan that runs, wherever it came from.
#include "src/app/open_model.h"

#include <gtest/gtest.h>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

constexpr const char* kModel = "stories260k";

policy::Profile desktop() {
  policy::Profile profile = *policy::shipped_profile("rtx-3060");
  profile.device.reset();
  return profile;
}

MachineOptions given(policy::Profile profile) {
  MachineOptions out;
  out.source = ProfileSource::kGiven;
  out.profile = std::move(profile);
  out.profile_name = "desktop";
  return out;
}

class OpenModel : public ::testing::Test {
 protected:
  OpenModel() : options_(testing::options_for(requests_)) {
    options_.compute = ComputeChoice::kF32;
  }

  FoundPlan find(const MachineOptions& machine, const PlanWishes& wishes = {}) {
    input_ = plan_input(*model_, options_);
    return find_plan(*model_, options_, input_, machine, wishes);
  }
  // The tokens of an engine that runs the plan.
  std::vector<std::vector<int32_t>> tokens(const FoundPlan& found) {
    Engine engine(model_, options_, input_, found.plan);
    EXPECT_EQ(policy_to_json(engine.plan().policy), policy_to_json(found.plan.policy));
    EXPECT_EQ(engine.plan().memory_bytes(), found.plan.memory_bytes());
    testing::ListSource source(requests_);
    testing::CollectingSink sink;
    engine.generate(source, sink);
    std::vector<std::vector<int32_t>> out;
    for (auto& [id, answer] : sink.answers) out.push_back(answer.tokens);
    return out;
  }

  std::vector<GenerationRequest> requests_ =
      testing::greedy_requests({{1, 403, 407}, {1, 261}, {1, 300, 301, 302}}, 8);
  std::shared_ptr<const BoundModel> model_ = open_model(testing::fixture_model(kModel));
  EngineOptions options_;
  EngineInput input_;
};

TEST_F(OpenModel, ASearchedPlanRunsAsItIs) {
  MachineOptions none;
  none.source = ProfileSource::kNone;
  const FoundPlan filled = find(none);
  EXPECT_FALSE(filled.prediction);
  EXPECT_EQ(filled.candidates, 0);
  const auto expected = tokens(filled);

  options_.memory_budget_bytes = filled.plan.memory_bytes() - 200 * kKiB;
  PlanWishes wishes;
  wishes.constraints.micro_batch_tokens = 16;
  const FoundPlan found = find(given(desktop()), wishes);
  ASSERT_TRUE(found.prediction);
  EXPECT_GT(found.candidates, 1);
  EXPECT_EQ(found.kept, nullptr);
  EXPECT_EQ(found.plan.policy.micro_batch_tokens, 16);
  EXPECT_LE(found.plan.memory_bytes(), options_.memory_budget_bytes);
  EXPECT_EQ(tokens(found), expected);
}

TEST_F(OpenModel, APolicyByHandIsOnlyLookedAt) {
  options_.policy = policy::Policy{};
  options_.policy->micro_batch_sequences = 2;
  const FoundPlan found = find(given(desktop()));
  EXPECT_TRUE(found.prediction);
  EXPECT_EQ(found.candidates, 0);
  EXPECT_EQ(found.plan.policy.micro_batch_sequences, 2);
}

TEST_F(OpenModel, WhatIsAllInMemoryNeedsNoSearchWhereThatIsWanted) {
  PlanWishes wishes;
  wishes.prefers_memory = true;
  const FoundPlan found = find(given(desktop()), wishes);
  EXPECT_FALSE(found.prediction);
  EXPECT_EQ(found.plan.streamed_weight_bytes, 0);
}

TEST_F(OpenModel, AProfileOfAnotherKindOfMachineIsRefused) {
  try {
    find(given(*policy::shipped_profile("rtx-3060")));
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_NE(error.text().find("desktop"), std::string::npos) << error.text();
  }
}

TEST_F(OpenModel, OneModelServesTwoEngines) {
  MachineOptions none;
  none.source = ProfileSource::kNone;
  const FoundPlan found = find(none);
  const auto expected = tokens(found);
  EXPECT_EQ(tokens(found), expected);
  EXPECT_EQ(model_.use_count(), 1) << "engines let it go";
}

}  // namespace
}  // namespace sluice::app
