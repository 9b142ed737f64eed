// Plans of mixtures whose experts are not all in memory: who has slots, what passes are expected to
// read, and that model and simulation agree.
#include <gtest/gtest.h>

#include <algorithm>

#include "policy/cost_model.h"
#include "policy/routing_model.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

ModelShape qwen() {
  ModelShape model = shape_of("qwen3-30b-a3b");
  model.set_weights(*parse_weight_format("int4"));
  return model;
}

Policy keeps(double share, int64_t sequences) {
  Policy policy;
  policy.weights = memory_share(share);
  policy.micro_batch_sequences = sequences;
  return policy;
}

PlanInput input_of(const ModelShape& model, int64_t sequences) {
  PlanInput input = input_for(model, int64_t{1} << 42);
  input.workload.sequences = sequences;
  input.workload.max_prompt_tokens = 16;
  input.workload.max_total_tokens = 48;
  return input;
}

TEST(ExpertPlan, WhatEveryTokenNeedsIsThereFirstAndExpertsAreThereWhole) {
  const ModelShape model = qwen();
  const PlanInput input = input_of(model, 1);
  for (const double share : {0.02, 0.1, 0.3, 0.9}) {
    const Plan plan = make_plan(input, keeps(share, 1));
    int64_t slots = 0, layers = 0, away_from_dense = 0, slot_bytes = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const ScheduleExperts& layer = plan.experts[i];
      layers += layer.experts > 0;
      slots += layer.slots;
      for (size_t w = 0; w < plan.rows[i].size(); ++w) {
        const WeightShape& weight = model.sublayers[i].weights[w];
        const RowSplit& split = plan.rows[i][w];
        EXPECT_EQ(split.resident + split.disk, weight.rows);
        if (weight.experts == 0)
          away_from_dense += split.disk;
        else
          EXPECT_EQ(split.resident, layer.slots * weight.expert_rows());
      }
      for (const int32_t first : layer.first_parts) {
        const auto at = static_cast<size_t>(first);
        slot_bytes += layer.slots * plan.parts[i][at].bytes;
        for (size_t e = 0; e < 128; ++e) {
          EXPECT_EQ(plan.parts[i][at + e].expert, static_cast<int32_t>(e));
          EXPECT_EQ(plan.parts[i][at + e].bytes, plan.parts[i][at].bytes);
        }
      }
    }
    EXPECT_EQ(plan.expert_slot_bytes, slot_bytes);
    if (share < 0.05) {
      EXPECT_GT(away_from_dense, 0);
      EXPECT_EQ(layers, 0) << "no room for any";
      EXPECT_EQ(plan.demand_tokens, 0);
      continue;
    }
    EXPECT_EQ(away_from_dense, 0);
    EXPECT_EQ(layers, 48);
    EXPECT_GT(plan.demand_tokens, 0);
    const auto total = static_cast<double>(model.weight_bytes());
    EXPECT_NEAR(static_cast<double>(plan.resident_weight_bytes) / total, share, 0.01);
    EXPECT_EQ(plan.resident_weight_bytes + plan.streamed_weight_bytes, plan.weight_bytes);
    // The ring takes what a pass that does not ask streams of two layers, and no more.
    const double away = (1 - share) * total / 48;
    EXPECT_LT(static_cast<double>(plan.ring_bytes), 2.2 * away + 8e6);
  }
}

TEST(ExpertPlan, APolicyMaySayThatNobodyAsks) {
  const ModelShape model = qwen();
  const PlanInput input = input_of(model, 1);
  Policy policy = keeps(0.3, 1);
  policy.demand_tokens = 0;
  const Plan none = make_plan(input, policy);
  EXPECT_EQ(none.expert_slot_bytes, 0);
  EXPECT_FALSE(none.demands_experts(1));
  policy.demand_tokens = 5;
  const Plan five = make_plan(input, policy);
  EXPECT_TRUE(five.demands_experts(5));
  EXPECT_FALSE(five.demands_experts(6));
  EXPECT_EQ(parse_policy(policy_to_json(policy), "here").demand_tokens, 5);
  EXPECT_EQ(parse_policy("{}", "here").demand_tokens, -1);
  EXPECT_THROW(parse_policy("{\"demand_tokens\": -2}", "here"), Error);
}

// A token's experts that are in no slot, and nothing else.
TEST(ExpertPlan, ADecodePassReadsWhatTheRoutingModelSays) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t sequences : {1, 8, 16, 128}) {
    const PlanInput input = input_of(model, sequences);
    const Plan plan = make_plan(input, keeps(0.3, sequences));
    JobShape job;
    job.sequences = sequences;
    job.prompt_tokens = 16;
    job.new_tokens = 32;
    std::vector<CostTerm> terms;
    predict(model, plan, profile, input.kv_dtype, job, &terms);
    double expected = 0;
    for (size_t i = 0; i < plan.experts.size(); ++i) {
      const ScheduleExperts& layer = plan.experts[i];
      if (layer.experts == 0) continue;
      const auto away = static_cast<double>(layer.experts - layer.slots);
      const double share =
          plan.demands_experts(sequences) ? missing_share({128, 8, layer.slots}, sequences) : 1;
      for (const int32_t first : layer.first_parts)
        expected += 31 * away * share *
                    static_cast<double>(plan.parts[i][static_cast<size_t>(first)].bytes);
    }
    double read = 0;
    for (const CostTerm& term : terms)
      if (!term.is_prefill && term.what == "weights from disk") read += term.amount;
    EXPECT_NEAR(read, expected, 1e-6 * expected) << sequences;
  }
}

TEST(ExpertPlan, ModelAndSimulationAgree) {
  const ModelShape model = qwen();
  const Profile profile = plain_machine(false);
  for (const int64_t sequences : {1, 8, 16, 128})
    for (const double share : {0.1, 0.3, 0.7}) {
      const PlanInput input = input_of(model, sequences);
      const Plan plan = make_plan(input, keeps(share, sequences));
      JobShape job;
      job.sequences = sequences;
      job.prompt_tokens = 16;
      job.new_tokens = 32;
      const Prediction modelled = predict(model, plan, profile, input.kv_dtype, job);
      const Prediction simulated = simulate_block(model, plan, profile, input.kv_dtype, job);
      EXPECT_NEAR(modelled.decode_seconds / simulated.decode_seconds, 1, 0.15)
          << sequences << " sequences, " << share << " resident";
    }
}

}  // namespace
}  // namespace sluice::policy
