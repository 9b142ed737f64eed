// What passes do with experts, against arithmetic: bytes of matrices, the routing model layer by
// layer, draws of even routing, and what the cost model charges.
#include "policy/expert_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "policy/cost_model.h"
#include "policy/routing_model.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

// bf16: an expert of Qwen3-30B-A3B is three matrices of 768 x 2048 elements of two bytes.
constexpr double kExpertBytes = 3.0 * 768 * 2048 * 2;
constexpr int64_t kLayers = 48;

PlanInput job_input(const ModelShape& model, int64_t sequences, bool has_device) {
  PlanInput input = input_for(model, int64_t{1} << 42);
  if (has_device) input.device_budget_bytes = int64_t{1} << 42;
  input.workload.sequences = sequences;
  input.workload.max_prompt_tokens = 16;
  input.workload.max_total_tokens = 48;
  return input;
}

JobShape job_with(int64_t sequences) {
  JobShape job;
  job.sequences = sequences;
  job.prompt_tokens = 16;
  job.new_tokens = 32;
  return job;
}

struct Planned {
  Plan plan;
  PassWork decode;
};

// Beside a device nobody asks: who does, below.
Planned planned(const ModelShape& model, const TierShares& weights, int64_t sequences,
                bool has_device) {
  Policy policy;
  policy.weights = weights;
  if (has_device) policy.demand_tokens = 0;
  policy.micro_batch_sequences = sequences;
  Planned out{make_plan(job_input(model, sequences, has_device), policy), {}};
  out.decode = block_passes(model, out.plan, job_with(sequences), 1, 1).passes.back();
  return out;
}

TEST(ExpertTraffic, IsTheRoutingModelsSumOverLayersWhereExpertsHaveSlots) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  for (const int64_t sequences : {1, 3, 16, 128})
    for (const double share : {0.1, 0.3, 0.7}) {
      const Planned it = planned(model, memory_share(share), sequences, false);
      const ExpertTraffic traffic = expert_traffic(model, it.plan, it.decode);
      double asked = 0, missing = 0, away = 0;
      int64_t fewest = 128;
      for (const ScheduleExperts& layer : it.plan.experts) {
        if (layer.experts == 0) continue;
        const ExpertShare one{128, 8, layer.slots};
        asked += asked_experts(one, sequences);
        missing += static_cast<double>(128 - layer.slots) * missing_share(one, sequences);
        away += static_cast<double>(128 - layer.slots);
        fewest = std::min(fewest, layer.slots);
      }
      EXPECT_EQ(traffic.layers, kLayers);
      EXPECT_EQ(traffic.slots, fewest);
      EXPECT_EQ(traffic.demands, sequences <= it.plan.demand_tokens);
      EXPECT_NEAR(traffic.asked, asked, 1e-9 * asked);
      EXPECT_NEAR(traffic.asked_bytes, asked * kExpertBytes, 1e-9 * asked * kExpertBytes);
      EXPECT_NEAR(traffic.found_share(), 1 - missing / asked, 1e-9);
      EXPECT_EQ(traffic.up_bytes, 0);
      // Parts are read in whole blocks of the disk.
      const double loads = traffic.demands ? missing : away;
      EXPECT_NEAR(traffic.read_bytes, loads * kExpertBytes, 0.01 * loads * kExpertBytes);
      if (sequences == 1) EXPECT_EQ(traffic.asked, 8 * kLayers) << "a token's";
    }
}

TEST(ExpertTraffic, IsWhatTheCostModelCharges) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  for (const bool has_device : {false, true})
    for (const int64_t sequences : {1, 16, 128}) {
      const TierShares weights = has_device ? TierShares{0.2, 0.3, 0.5} : memory_share(0.3);
      const Planned it = planned(model, weights, sequences, has_device);
      std::vector<CostTerm> terms;
      predict(model, it.plan, plain_machine(has_device), DType::kBF16, job_with(sequences), &terms);
      double read = 0, up = 0;
      for (const CostTerm& term : terms) {
        if (term.is_prefill) continue;
        if (term.what == "weights from disk") read += term.amount / 31;
        if (term.what == "weights up") up += term.amount / 31;
      }
      const ExpertTraffic traffic = expert_traffic(model, it.plan, it.decode);
      // Beside a device other matrices lie below it too.
      double others_read = 0, others_up = 0;
      for (size_t i = 0; i < model.sublayers.size(); ++i)
        for (const PlanPart& part : it.plan.parts[i]) {
          if (model.sublayers[i].weights[static_cast<size_t>(part.weight)].experts > 0) continue;
          if (part.from_disk) others_read += static_cast<double>(part.read_bytes());
          if (has_device) others_up += static_cast<double>(part.bytes);
        }
      EXPECT_NEAR(traffic.read_bytes + others_read, read, 1e-6 * read) << sequences;
      EXPECT_NEAR(traffic.up_bytes + others_up, up, 1e-6 * up) << sequences;
      if (has_device) EXPECT_GT(traffic.up_bytes, traffic.read_bytes);
    }
}

// Distinct experts of 128 that `tokens` tokens go to, each to 8 of them by even chances.
double drawn(int64_t tokens, std::mt19937& random) {
  constexpr int kDraws = 200;
  double sum = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::set<int> touched;
    std::vector<int> experts(128);
    std::iota(experts.begin(), experts.end(), 0);
    for (int64_t token = 0; token < tokens; ++token) {
      std::shuffle(experts.begin(), experts.end(), random);
      touched.insert(experts.begin(), experts.begin() + 8);
    }
    sum += static_cast<double>(touched.size());
  }
  return sum / kDraws;
}

// Of a share of all weights in the nearest memories what experts have: what every token needs lies
// there before them.
double share_of_experts(const ModelShape& model, double share) {
  double all = 0, experts = 0, tables = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind == WeightKind::kVector) continue;
      const auto bytes = static_cast<double>(model.rows_bytes(weight, weight.rows));
      all += bytes;
      if (weight.experts > 0) experts += bytes;
      if (weight.kind == WeightKind::kTable) tables += bytes;
    }
  return (share * all - (all - experts - tables)) / experts;
}

TEST(ExpertTraffic, IsThatOfEvenRoutingBesideADevice) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  const double resident = share_of_experts(model, 0.25), held = share_of_experts(model, 0.75);
  std::mt19937 random(5);
  for (const int64_t tokens : {1, 2, 16, 50}) {
    const Planned it = planned(model, {0.25, 0.5, 0.25}, tokens, true);
    const ExpertTraffic traffic = expert_traffic(model, it.plan, it.decode);
    EXPECT_NEAR(traffic.asked / kLayers, drawn(tokens, random), 0.03 * traffic.asked / kLayers);
    EXPECT_NEAR(traffic.found_share(), resident, 0.01);
    EXPECT_EQ(traffic.slots, 0);
    EXPECT_FALSE(traffic.demands);
    // All that are elsewhere go up, whoever is asked for.
    const double all = 128 * kLayers * kExpertBytes;
    EXPECT_NEAR(traffic.up_bytes, (1 - resident) * all, 0.02 * all);
    EXPECT_NEAR(traffic.read_bytes, (1 - held) * all, 0.02 * all);
  }
}

TEST(ExpertTraffic, WhatTheCpuMultipliesInPlaceDoesNotMove) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  Policy policy;
  policy.weights = {0.25, 0.75, 0};
  policy.inplace_host_fraction = 0.5;
  const Plan plan = make_plan(job_input(model, 1, true), policy);
  const PassWork pass = block_passes(model, plan, job_with(1), 1, 1).passes.back();
  const ExpertTraffic traffic = expert_traffic(model, plan, pass);
  // All that is multiplied in place is experts', as long as there are some.
  const double resident = share_of_experts(model, 0.25);
  const double inplace = share_of_experts(model, 0.75) - resident;
  EXPECT_GT(inplace, 0.5);
  EXPECT_NEAR(traffic.inplace_bytes, inplace * traffic.asked_bytes, 0.01 * traffic.asked_bytes);
  EXPECT_NEAR(traffic.found_share(), resident + inplace, 0.01);
  EXPECT_NEAR(traffic.up_bytes, (1 - resident - inplace) * 128 * kLayers * kExpertBytes,
              0.01 * 128 * kLayers * kExpertBytes);
}

TEST(ExpertTraffic, IsFoundOnTheDeviceAndInTheHostsSlotsBelowIt) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  for (const int64_t sequences : {1, 8, 512}) {
    Policy policy;
    policy.weights = {0.25, 0.3, 0.45};
    policy.micro_batch_sequences = sequences;
    const Plan plan = make_plan(job_input(model, sequences, true), policy);
    const PassWork pass = block_passes(model, plan, job_with(sequences), 1, 1).passes.back();
    const ExpertTraffic traffic = expert_traffic(model, plan, pass);
    double resident = 0, held = 0, missing = 0, away = 0, others = 0;
    for (const ScheduleExperts& layer : plan.experts) {
      if (layer.experts == 0) continue;
      const AskedExperts asked = asked_experts(layer, 8, sequences);
      resident += asked.resident;
      held += asked.held;
      missing += asked.missing;
      away += static_cast<double>(layer.others() - layer.slots);
      others += static_cast<double>(layer.others());
      // A token goes to no fewer than it chooses, and few more are counted.
      EXPECT_GE(asked.all(), 8 - 1e-9);
      if (sequences == 1) {
        EXPECT_LE(asked.all(), 9);
      }
    }
    EXPECT_NEAR(traffic.asked, resident + held + missing, 1e-6 * traffic.asked);
    EXPECT_NEAR(traffic.found_bytes, resident * kExpertBytes, 1e-6 * traffic.asked_bytes);
    EXPECT_EQ(traffic.demands, sequences < 512);
    const double blocks = 1.002;  // whole ones are read
    if (traffic.demands) {
      EXPECT_NEAR(traffic.inplace_bytes, held * kExpertBytes, 1e-6 * traffic.asked_bytes);
      EXPECT_EQ(traffic.up_bytes, 0);
      EXPECT_NEAR(traffic.read_bytes, missing * kExpertBytes * blocks,
                  0.01 * missing * kExpertBytes);
    } else {
      EXPECT_EQ(traffic.inplace_bytes, 0);
      EXPECT_NEAR(traffic.up_bytes, others * kExpertBytes * blocks, 0.01 * others * kExpertBytes);
      EXPECT_NEAR(traffic.read_bytes, away * kExpertBytes * blocks, 0.01 * away * kExpertBytes);
    }
  }
}

TEST(ExpertTraffic, MicroBatchesOfAPassShareWhatIsLoadedForAll) {
  const ModelShape& model = shape_of("mixtral-8x7b");
  Policy policy;
  policy.weights = {0.25, 0.75, 0};
  policy.micro_batch_sequences = 16;
  policy.micro_batches = 8;
  const Plan plan = make_plan(job_input(model, 128, true), policy);
  const PassWork pass = block_passes(model, plan, job_with(128), 1, 1).passes.back();
  EXPECT_EQ(pass.work.size(), 8u);
  EXPECT_NEAR(expert_traffic(model, plan, pass).asked, 8 * 32, 1e-6) << "all of them, once";
}

TEST(ExpertTraffic, OfADenseModelThereIsNone) {
  const ModelShape& model = shape_of("llama-2-7b");
  const Planned it = planned(model, memory_share(0.5), 4, false);
  const ExpertTraffic traffic = expert_traffic(model, it.plan, it.decode);
  EXPECT_EQ(traffic.layers, 0);
  EXPECT_EQ(traffic.read_bytes + traffic.asked_bytes, 0);
  EXPECT_EQ(traffic.found_share(), 1);
}

}  // namespace
}  // namespace sluice::policy
