// A maker of passes that remembers gives what cutting each time gives; the cost model, which counts
// micro-batches that are alike together, does not mind where they stand.
#include "policy/pass_model.h"

#include <gtest/gtest.h>

#include <random>

#include "policy/cost_model.h"
#include "src/base/bytes.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

struct Case {
  Profile profile = *shipped_profile("t4");
  ModelShape model = shape_of("opt-30b");
  PlanInput input;
  JobShape job;

  explicit Case(std::mt19937& random) {
    const auto any = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t sequences = any(1, 40);
    const int64_t prompt = any(1, 700);
    const int64_t fresh = any(1, 40);
    input = input_for(model, profile.host_bytes);
    input.device_budget_bytes = any(0, 3) > 0 ? profile.device_bytes : 0;
    input.disk_budget_bytes = profile.disk_bytes;
    input.kv_dtype = DType::kF16;
    input.workload = {sequences, prompt, prompt + fresh, sequences * (prompt + fresh)};
    job = {sequences, static_cast<double>(prompt), static_cast<double>(fresh), prompt, fresh};
  }
};

TierShares any_shares(std::mt19937& random) {
  std::uniform_int_distribution<int> part(0, 2);
  const double host = 0.5 * part(random);
  const double disk = std::min(0.5 * part(random), 1 - host);
  return {1 - host - disk, host, disk};
}

Policy any_policy(std::mt19937& random, bool has_device) {
  const auto any = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Policy policy;
  policy.weights = any_shares(random);
  policy.kv = any_shares(random);
  policy.activations = any_shares(random);
  policy.micro_batch_sequences = any(1, 9);
  policy.micro_batches = any(1, 5);
  policy.micro_batch_tokens = any(1, 3) * 100;
  policy.pass_tokens = any(0, 1) * 1000;
  if (!has_device) return policy;
  policy.inplace_host_fraction = policy.weights.host / static_cast<double>(any(1, 3));
  policy.attention = any(0, 1) ? AttentionPlace::kHost : AttentionPlace::kDevice;
  policy.host_attention_tokens = 64 * any(0, 1);
  if (any(0, 1)) policy.larger_passes = {{any(2, 300), 0, AttentionPlace::kDevice, 0}};
  return policy;
}

void expect_equal(const BlockPasses& one, const BlockPasses& other) {
  ASSERT_EQ(one.passes.size(), other.passes.size());
  EXPECT_EQ(one.prefill_passes, other.prefill_passes);
  EXPECT_EQ(one.sequences, other.sequences);
  for (size_t i = 0; i < one.passes.size(); ++i) {
    const PassWork& a = one.passes[i];
    const PassWork& b = other.passes[i];
    EXPECT_EQ(a.work, b.work);
    EXPECT_EQ(a.pass_class, b.pass_class);
    EXPECT_EQ(a.passes, b.passes);
    EXPECT_EQ(a.is_prefill, b.is_prefill);
    EXPECT_EQ(a.more_follow, b.more_follow);
    ASSERT_EQ(a.loads.size(), b.loads.size());
    for (size_t j = 0; j < a.loads.size(); ++j) {
      EXPECT_TRUE(a.loads[j].moves_like(b.loads[j])) << i << " " << j;
      EXPECT_EQ(a.loads[j].continues_previous, b.loads[j].continues_previous);
    }
  }
}

TEST(PassMaker, MakesWhatCuttingEachTimeMakes) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const Case one(random);
    PassMaker maker(one.model, one.job, 2, 2);
    Policy policy = any_policy(random, one.input.device_budget_bytes > 0);
    std::vector<Policy> seen;
    for (int corner = 0; corner < 24; ++corner) {
      SCOPED_TRACE(testing::Message() << "round " << round << " corner " << corner);
      // The LP's corners change weights most of the time, and the rest now and then.
      policy.weights = any_shares(random);
      policy.inplace_host_fraction = std::min(policy.inplace_host_fraction, policy.weights.host);
      if (corner % 3 == 1) policy.kv = any_shares(random);
      if (corner % 3 == 2) policy.activations = any_shares(random);
      if (corner % 8 == 5) policy = any_policy(random, one.input.device_budget_bytes > 0);
      // Linear programs of one block ask again for what an earlier one asked for, with other
      // passes that ask for experts.
      if (corner >= 8 && corner % 2 == 0) policy = seen[random() % seen.size()];
      policy.demand_tokens = static_cast<int64_t>(random() % 3) * 16;
      policy.guess_slots = static_cast<int64_t>(random() % 2) - 1;
      seen.push_back(policy);
      const Plan plan = make_plan(one.input, policy);
      expect_equal(maker(plan), block_passes(one.model, plan, one.job, 2, 2));
    }
  }
}

TEST(CostModel, CountsMicroBatchesWhereverTheyStand) {
  std::mt19937 random(2);
  for (int round = 0; round < 40; ++round) {
    const Case one(random);
    const Plan plan = make_plan(one.input, any_policy(random, one.input.device_budget_bytes > 0));
    BlockPasses block = block_passes(one.model, plan, one.job, 2, 2);
    const auto predicted = [&] {
      return predict(one.model, plan, one.profile, one.input.kv_dtype, one.job, block);
    };
    const Prediction before = predicted();
    for (PassWork& pass : block.passes) {
      std::vector<size_t> order(pass.loads.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      const PassWork from = pass;
      for (size_t i = 0; i < order.size(); ++i) {
        pass.loads[i] = from.loads[order[i]];
        pass.work[i] = from.work[order[i]];
      }
    }
    const Prediction after = predicted();
    EXPECT_NEAR(after.prefill_seconds, before.prefill_seconds, 1e-9 * before.prefill_seconds);
    EXPECT_NEAR(after.decode_seconds, before.decode_seconds, 1e-9 * before.decode_seconds);
    for (size_t lane = 0; lane < before.prefill_lanes.size(); ++lane) {
      EXPECT_NEAR(after.prefill_lanes[lane], before.prefill_lanes[lane],
                  1e-9 * before.prefill_seconds)
          << lane;
      EXPECT_NEAR(after.decode_lanes[lane], before.decode_lanes[lane], 1e-9 * before.decode_seconds)
          << lane;
    }
    EXPECT_NEAR(after.prefill_host_memory_seconds, before.prefill_host_memory_seconds,
                1e-9 * before.prefill_seconds);
  }
}

}  // namespace
}  // namespace sluice::policy
