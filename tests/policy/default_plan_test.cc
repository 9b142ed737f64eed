#include <gtest/gtest.h>

#include <cmath>

#include "policy/plan.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/policy/plan_fixture.h"
#include "tests/rounds.h"

namespace sluice::policy {
namespace {

std::optional<Plan> default_plan_or_none(const PlanInput& input) {
  try {
    return default_plan(input, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource) << error.what();
    return std::nullopt;
  }
}

TEST(DefaultPlan, StaysWithinTheBudgetOrRefuses) {
  std::mt19937 random(1);
  int made = 0;
  int refused = 0;
  for (int round = 0; round < rounds(120); ++round) {
    const ModelShape& model = shape_of(tested_models()[random() % tested_models().size()]);
    const double fraction = std::pow(
        2.0, static_cast<double>(random() % 1600) / 100 - 12);  // 1/4096 to 16 times the weights
    PlanInput input = input_for(
        model, static_cast<int64_t>(fraction * static_cast<double>(model.weight_bytes())));
    input.workload = random_workload(random);
    const auto plan = default_plan_or_none(input);
    ++(plan ? made : refused);
    if (!plan) continue;
    ASSERT_LE(plan->memory_bytes(), input.memory_budget_bytes);
    EXPECT_NO_THROW(validate(plan->policy));
    EXPECT_GE(plan->policy.micro_batch_sequences, 1);
    EXPECT_GE(plan->pass_tokens, plan->policy.block_sequences() > input.workload.sequences
                                     ? 1
                                     : plan->policy.block_sequences());
    // Made by the same function from the policy that it chose: nothing else went in.
    const Plan again = make_plan(input, plan->policy);
    EXPECT_EQ(again.memory_bytes(), plan->memory_bytes());
    EXPECT_EQ(again.resident_weight_bytes, plan->resident_weight_bytes);
  }
  EXPECT_GT(made, rounds(40));
  EXPECT_GT(refused, rounds(5));
}

TEST(DefaultPlan, KeepsEverythingInMemoryWhenThatFits) {
  for (const std::string& name : tested_models()) {
    const ModelShape& model = shape_of(name);
    PlanInput input = input_for(model, 4 * model.weight_bytes() + 8 * kGiB);
    input.workload = {.sequences = 4, .max_prompt_tokens = 100, .max_total_tokens = 132};
    const Plan plan = default_plan(input, {});
    EXPECT_EQ(plan.resident_weight_bytes, plan.weight_bytes) << name;
    EXPECT_EQ(plan.disk_bytes(), 0) << name;
    EXPECT_EQ(plan.ring_bytes, 0) << name;
    EXPECT_EQ(plan.policy.micro_batch_sequences, 4) << name;
  }
}

TEST(DefaultPlan, ABudgetBelowTheWeightsStreams) {
  const ModelShape& model = shape_of("llama-2-7b");
  PlanInput input = input_for(model, model.weight_bytes() / 2);
  input.workload = {.sequences = 8, .max_prompt_tokens = 200, .max_total_tokens = 232};
  const Plan plan = default_plan(input, {});
  EXPECT_GT(plan.streamed_weight_bytes, model.weight_bytes() / 3);
  EXPECT_GT(plan.resident_weight_bytes, 0);
  EXPECT_GT(plan.memory_bytes(), input.memory_budget_bytes * 9 / 10) << "the budget is used";
}

TEST(DefaultPlan, MoreMemoryNeverKeepsFewerWeightsForTheSameBlock) {
  for (const std::string name : {"opt-125m", "llama-2-7b", "llama-3.2-1b", "opt-30b"}) {
    const ModelShape& model = shape_of(name);
    int64_t before = -1;
    for (int step = 0; step <= 60; ++step) {
      const int64_t budget = model.weight_bytes() * (10 + 2 * step) / 100 + 200 * kMiB;
      PlanInput input = input_for(model, budget);
      input.workload = {.sequences = 1, .max_prompt_tokens = 64, .max_total_tokens = 96};
      const auto plan = default_plan_or_none(input);
      if (!plan) {
        ASSERT_EQ(before, -1) << name << ": less memory was enough";
        continue;
      }
      ASSERT_GE(plan->resident_weight_bytes, before) << name << " with " << format_bytes(budget);
      before = plan->resident_weight_bytes;
    }
    ASSERT_EQ(before, model.weight_bytes()) << name;
  }
}

TEST(DefaultPlan, OnceABudgetIsEnoughALargerOneIsToo) {
  std::mt19937 random(6);
  const ModelShape& model = shape_of("opt-1.3b");
  for (int round = 0; round < rounds(10); ++round) {
    const Workload workload = random_workload(random);
    bool was_enough = false;
    for (int64_t budget = 50 * kMiB; budget < 4 * kGiB; budget += 150 * kMiB) {
      PlanInput input = input_for(model, budget);
      input.workload = workload;
      const bool is_enough = default_plan_or_none(input).has_value();
      ASSERT_TRUE(is_enough || !was_enough) << format_bytes(budget);
      was_enough = was_enough || is_enough;
    }
    ASSERT_TRUE(was_enough);
  }
}

TEST(DefaultPlan, RefusalOfAHopelessBudgetNamesWhatWouldDo) {
  PlanInput input = input_for(shape_of("opt-175b"), 100 * kMiB);
  try {
    (void)default_plan(input, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(error.text().find("weight ring"), std::string::npos) << error.text();
    EXPECT_NE(error.mend().find("`memory_budget_bytes`"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::policy
