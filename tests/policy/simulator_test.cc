#include "policy/simulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>

#include "policy/cost_model.h"
#include "policy/routing_model.h"
#include "src/base/bytes.h"
#include "src/engine/passes/pass_plan.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice::policy {
namespace {

Policy random_policy(std::mt19937& random, bool has_device) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  const auto shares = [&]() -> TierShares {
    if (random() % 3 == 0) return {1, 0, 0};
    const double device = uniform();
    const double host = has_device ? (1 - device) * uniform() : 0;
    return {device, host, 1 - device - host};
  };
  Policy policy;
  policy.weights = shares();
  policy.kv = shares();
  policy.activations = shares();
  policy.micro_batch_sequences = 1 + static_cast<int64_t>(random() % 6);
  policy.micro_batches = 1 + static_cast<int64_t>(random() % 4);
  policy.micro_batch_tokens = 16 + static_cast<int64_t>(random() % 200);
  policy.pass_tokens = random() % 2 ? 0 : 64 + static_cast<int64_t>(random() % 500);
  if (policy.pass_tokens > 0)
    policy.pass_tokens = std::max(policy.pass_tokens, policy.block_sequences());
  if (has_device) {
    policy.attention = random() % 2 ? AttentionPlace::kHost : AttentionPlace::kDevice;
    policy.inplace_host_fraction = policy.weights.host * (random() % 2 ? uniform() : 0);
    policy.host_attention_tokens = random() % 2 ? 0 : 1 + static_cast<int64_t>(random() % 40);
    int64_t from = 1;
    for (size_t more = random() % 3; more > 0; --more) {
      from += 1 + static_cast<int64_t>(random() % 200);
      policy.larger_passes.push_back(
          {from, policy.weights.host * (random() % 3 ? uniform() : 0),
           random() % 2 ? AttentionPlace::kHost : AttentionPlace::kDevice,
           random() % 2 ? 0 : 1 + static_cast<int64_t>(random()) % policy.micro_batch_tokens});
    }
  }
  return policy;
}

struct Case {
  PlanInput input;
  Plan plan;
  Profile profile;
  JobShape job;
};

Case random_case(std::mt19937& random) {
  const bool has_device = random() % 2 == 0;
  Case out;
  out.profile = random_machine(random, has_device);
  out.input = input_for(shape_of(random() % 2 ? "opt-125m" : "tinyllama-1.1b"), int64_t{1} << 40);
  out.input.device_budget_bytes = has_device ? int64_t{1} << 40 : 0;
  out.input.disk_reaches_device = random() % 3 == 0;
  const Policy policy = random_policy(random, has_device);
  out.job.sequences = policy.block_sequences();
  out.job.prompt_tokens = static_cast<double>(1 + random() % 300);
  out.job.new_tokens = static_cast<double>(1 + random() % 12);
  out.input.workload = {out.job.sequences, static_cast<int64_t>(out.job.prompt_tokens),
                        static_cast<int64_t>(out.job.prompt_tokens + out.job.new_tokens), 0};
  out.plan = make_plan(out.input, policy);
  return out;
}

Simulation simulate_all(const Case& one, bool keep_tasks, BlockPasses* passes = nullptr) {
  const BlockPasses block = block_passes(*one.input.model, one.plan, one.job, 1000, 1000);
  if (passes) *passes = block;
  return simulate(*one.input.model, one.plan, one.profile, one.input.kv_dtype,
                  schedule_shape(*one.input.model, one.plan), block.passes, keep_tasks);
}

// What layers lack is spread as the routing model's mean allows it, not evenly: a layer that lacks
// none does not wait, one that lacks four waits for long.
TEST(Simulator, LayersOfAMixtureLackExpertsByChance) {
  const ModelShape& model = shape_of("qwen3-30b-a3b");
  const Profile machine = plain_machine(false);
  for (const double share : {0.1, 0.3, 0.5}) {
    Policy policy;
    policy.weights = memory_share(share);
    policy.guess_slots = 0;  // wrong ones load too
    PlanInput input = input_for(model, int64_t{1} << 42);
    input.workload = {1, 2, 130, 0};
    JobShape job;
    job.sequences = 1;
    job.prompt_tokens = 2;
    job.new_tokens = 128;
    const Plan plan = make_plan(input, policy);
    const BlockPasses block = block_passes(model, plan, job, 100, 1);
    const Simulation s = simulate(model, plan, machine, DType::kBF16, schedule_shape(model, plan),
                                  block.passes, true);
    std::map<std::pair<int64_t, int32_t>, double> lacks;  // [pass, sublayer], in experts
    for (const SimulatedTask& done : s.tasks)
      if (done.task.kind == TaskKind::kLoadWeights)
        lacks[{done.task.pass, done.task.sublayer}] += 1;
    double expected = 0, layers = 0;
    std::map<int64_t, double> chance;  // [experts lacked]
    const auto passes = static_cast<double>(block.passes.size() - 1);
    for (const ScheduleExperts& layer : plan.experts) {
      if (layer.experts == 0) continue;
      const AskedExperts asked = asked_experts(layer, model.experts_per_token, 1);
      expected += asked.missing;
      ++layers;
      const double p = asked.missing / asked.all();
      double binomial = std::pow(1 - p, 8);
      for (int64_t k = 0; k <= 8; ++k) {
        chance[k] += binomial;
        binomial *= p / (1 - p) * static_cast<double>(8 - k) / static_cast<double>(k + 1);
      }
    }
    double loads = 0;
    for (const auto& [at, parts] : lacks)
      if (at.first > 0) loads += parts / 3;
    EXPECT_NEAR(loads, expected * passes, 0.03 * expected * passes) << share;
    double without = layers * passes;
    for (const auto& [at, parts] : lacks) without -= at.first > 0 ? 1 : 0;
    EXPECT_NEAR(without / (layers * passes), chance[0] / layers, 0.03) << share;
    policy.guess_slots = 16;
    const Plan guessing = make_plan(input, policy);
    EXPECT_LT(simulate(model, guessing, machine, DType::kBF16, schedule_shape(model, guessing),
                       block.passes, false)
                  .seconds,
              s.seconds)
        << share;
  }
}

TEST(Simulator, NeverFasterThanTheBusiestLaneOrTheLongestWait) {
  std::mt19937 random(41);
  for (int round = 0; round < 60; ++round) {
    const Case one = random_case(random);
    const Simulation s = simulate_all(one, true);
    double busiest = 0;
    for (size_t lane = 0; lane < named_lanes().size(); ++lane)
      busiest = std::max(busiest, s.busy_seconds(Lane(lane)));
    ASSERT_GE(s.seconds * (1 + 1e-9), busiest);
    std::vector<double> ends;
    PerLane<double> lane_free;
    for (const SimulatedTask& done : s.tasks) {
      const auto id = static_cast<size_t>(done.task.id);
      if (ends.size() <= id) ends.resize(id + 1, -1);
      ends[id] = done.end_seconds;
    }
    for (const SimulatedTask& done : s.tasks) {
      ASSERT_GE(done.end_seconds, done.start_seconds);
      for (const TaskId wait : done.task.waits)
        ASSERT_LE(ends[static_cast<size_t>(wait)], done.start_seconds + 1e-9) << "waits hold";
    }
    std::vector<const SimulatedTask*> by_start;
    for (const SimulatedTask& done : s.tasks) by_start.push_back(&done);
    std::sort(by_start.begin(), by_start.end(),
              [](auto* a, auto* b) { return a->task.id < b->task.id; });
    for (const SimulatedTask* done : by_start) {
      double& free = lane_free[done->task.lane];
      ASSERT_GE(done->start_seconds, free - 1e-9) << "a lane runs one task at a time, in order";
      free = done->end_seconds;
    }
  }
}

TEST(Simulator, AsFastAsTheBusiestLaneWhereOneLaneIsAll) {
  // All weights stream from a disk a thousand times slower than the rest.
  Case one;
  one.profile = plain_machine(false);
  Disk& disk = one.profile.disks.front();
  disk.read.value = disk.mixed_read.value = disk.busy_read.value = 1e6;
  one.input = input_for(shape_of("opt-125m"), int64_t{1} << 40);
  one.job = {1, 4, 6, 0, 0};
  one.input.workload = {1, 4, 10, 0};
  Policy policy;
  policy.weights = {0, 0, 1};
  one.plan = make_plan(one.input, policy);
  const Simulation s = simulate_all(one, false);
  const double read = s.busy_seconds(Lane::kDiskRead);
  EXPECT_NEAR(s.seconds, read, 0.01 * read);
  const double bytes = static_cast<double>(one.plan.streamed_weight_bytes) * 6;
  EXPECT_NEAR(read, bytes / 1e6, 0.02 * bytes / 1e6);
}

// KV pages are small requests: each takes its time beside its bytes, in the model and simulated.
TEST(Simulator, PagesTakeWhatSmallRequestsTake) {
  Case one;
  one.profile = plain_machine(false);
  one.input = input_for(shape_of("opt-125m"), int64_t{1} << 40);
  one.job = {2, 64, 2, 0, 0};
  one.input.workload = {2, 64, 66, 0};
  Policy policy;
  policy.kv = {0, 0, 1};
  policy.micro_batch_sequences = 2;
  policy.page_tokens = 16;
  one.plan = make_plan(one.input, policy);
  const auto reads = [&](double request_seconds) {
    one.profile.disks.front().read_request_seconds.value = request_seconds;
    std::vector<CostTerm> terms;
    predict(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job, &terms);
    double told = 0;
    for (const CostTerm& term : terms)
      if (term.what == "KV from disk") told += term.seconds;
    return std::pair{told, simulate_all(one, false).busy_seconds(Lane::kDiskRead)};
  };
  const auto free = reads(0), dear = reads(1e-3);
  // Of the second token alone is KV read: four whole pages and one begun (of 65 tokens) of two
  // sequences, or what the mean of passes makes of it; 12 layers.
  EXPECT_NEAR(dear.second - free.second, 2 * 4 * 12 * 1e-3, 2 * 12 * 1e-3 + 1e-9);
  EXPECT_NEAR(dear.first - free.first, dear.second - free.second, 2 * 12 * 1e-3 + 1e-9);
}

TEST(Simulator, SampledDecodeIsTheWholeDecode) {
  std::mt19937 random(42);
  for (int round = 0; round < 12; ++round) {
    Case one = random_case(random);
    one.job.new_tokens = 40;
    one.input.workload.max_total_tokens = static_cast<int64_t>(one.job.prompt_tokens) + 40;
    one.plan = make_plan(one.input, one.plan.policy);
    BlockPasses all;
    const Simulation whole = simulate_all(one, false, &all);
    const Prediction sampled =
        simulate_block(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job);
    EXPECT_NEAR(sampled.seconds(), whole.seconds, 0.06 * whole.seconds) << round;
  }
}

TEST(Simulator, TheSameStreamHasTheSameHashAndOneThatDiffersHasNot) {
  std::mt19937 random(43);
  const Case one = random_case(random);
  const uint64_t hash = simulate_all(one, false).stream_hash;
  EXPECT_EQ(simulate_all(one, true).stream_hash, hash);
  Case other = one;
  other.job.new_tokens += 1;
  EXPECT_NE(simulate_all(other, false).stream_hash, hash);
}

// The tier of a sequence's pages as the engine deals them: whole sequences where the host attends,
// else pages.
PageTier tier_of(const Plan& plan, int64_t sequence, int64_t page) {
  const KvPlan& kv = plan.kv.front();
  const double share =
      static_cast<double>(kv.lower_pages()) / static_cast<double>(std::max<int64_t>(kv.pages(), 1));
  const bool is_dealt_whole = plan.host_attends();
  const auto item = static_cast<double>(is_dealt_whole ? sequence : page);
  const bool is_lower = std::floor(share * (item + 1) + 1e-9) > std::floor(share * item + 1e-9);
  return is_lower ? PageTier::kDisk : PageTier::kCompute;
}

// The model of passes and the engine's own planner cut a block the same way.
TEST(PassModel, CutsBlocksAsTheEngineDoes) {
  std::mt19937 random(44);
  for (int round = 0; round < 120; ++round) {
    const Case one = random_case(random);
    const Policy& policy = one.plan.policy;
    const auto prompt = static_cast<int64_t>(one.job.prompt_tokens);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Sequence*> pointers;
    for (int64_t i = 0; i < one.job.sequences; ++i) {
      sequences.push_back(std::make_unique<Sequence>(Sequence{static_cast<uint64_t>(i),
                                                              {},
                                                              prompt,
                                                              0,
                                                              {},
                                                              sampling::Sampler({}, {}),
                                                              false,
                                                              std::nullopt}));
      sequences.back()->tokens.assign(static_cast<size_t>(prompt), 1);
      GroupPages& pages = sequences.back()->pages.groups.emplace_back();
      for (int64_t page = 0; page < prompt / policy.page_tokens + 2; ++page)
        pages.pages.push_back({tier_of(one.plan, i, page), 0});
      pointers.push_back(sequences.back().get());
    }
    const BlockPasses block = block_passes(*one.input.model, one.plan, one.job, 1000, 1000);
    std::vector<PassLimits> limits;
    for (size_t i = 0; i < policy.pass_classes(); ++i) {
      limits.push_back(pass_limits(one.plan, i));
      // Staging is not modelled.
      for (GroupLimits& group : limits.back().groups) group.staged = {INT64_MAX, INT64_MAX};
    }
    for (size_t pass = 0; pass < block.prefill_passes; ++pass) {
      const PassPlan real = plan_pass(pointers, limits, [&](const PassTokens& taken) {
        return policy.pass_class_of(taken.prefill_tokens + taken.decode_tokens);
      });
      const PassWork& modelled = block.passes[pass];
      ASSERT_EQ(modelled.pass_class, real.pass_class);
      ASSERT_EQ(modelled.work.size(), real.micro_batches.size()) << "pass " << pass;
      for (size_t i = 0; i < real.micro_batches.size(); ++i) {
        ASSERT_EQ(modelled.work[i].tokens, real.micro_batches[i]->rows());
        ASSERT_EQ(modelled.work[i].logit_rows,
                  static_cast<int64_t>(real.micro_batches[i]->needed_rows.size()));
        ASSERT_EQ(modelled.loads[i].continues_previous, real.micro_batches[i]->continues_previous);
        ASSERT_EQ(modelled.work[i].host_rows, real.micro_batches[i]->host_rows);
      }
      for (const auto& batch : real.micro_batches)
        for (const Chunk& chunk : batch->chunks) chunk.sequence->computed += chunk.count;
    }
    for (const Sequence* sequence : pointers) ASSERT_EQ(sequence->computed, prompt);
  }
}

TEST(CostModel, IsABoundBelowTheSimulation) {
  std::mt19937 random(45);
  double worst = 1;
  for (int round = 0; round < 40; ++round) {
    const Case one = random_case(random);
    const Prediction bound =
        predict(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job);
    const Prediction simulated =
        simulate_block(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job);
    // Both look at a few passes of many, not at the same ones, which may be of different classes.
    const double most = one.plan.classes.size() > 1 ? 1.3 : 1.15;
    ASSERT_LE(bound.seconds(), simulated.seconds() * most) << round;
    worst = std::min(worst, bound.seconds() / simulated.seconds());
  }
  EXPECT_GT(worst, 0.2) << "and not a useless one";
}

TEST(CostModel, TermsAreTheLanesSeconds) {
  std::mt19937 random(46);
  for (int round = 0; round < 20; ++round) {
    const Case one = random_case(random);
    std::vector<CostTerm> terms;
    const Prediction p =
        predict(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job, &terms);
    PerLane<double> sums;
    for (const CostTerm& term : terms) {
      EXPECT_GT(term.amount, 0) << term.what;
      sums[static_cast<size_t>(term.lane)] += term.seconds;
    }
    for (size_t lane = 0; lane < named_lanes().size(); ++lane)
      EXPECT_NEAR(sums[lane], p.lane_seconds(static_cast<Lane>(lane)), 1e-9 + 1e-9 * sums[lane]);
  }
}

// Two passes stand for all: a share of the pages on disk is written as that share, not as none or
// as all.
TEST(CostModel, WritesOfKvAreTheirShareHoweverSmall) {
  for (const double share : {0.03, 0.2, 0.5, 1.0}) {
    Case one;
    one.profile = plain_machine(false);
    one.input = input_for(shape_of("opt-125m"), int64_t{1} << 40);
    one.job = {8, 100, 64, 100, 64};
    one.input.workload = {8, 100, 164, 0};
    Policy policy;
    policy.micro_batch_sequences = 8;
    policy.kv = {1 - share, 0, share};
    one.plan = make_plan(one.input, policy);
    const Prediction p =
        predict(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job);
    // Every token after the prompt writes its sequence's last page anew.
    const double real_share =
        static_cast<double>(one.plan.kv.front().disk_pages) /
        static_cast<double>(one.plan.kv.front().disk_pages + one.plan.kv.front().memory_pages);
    const auto page = static_cast<double>(round_up(one.plan.kv.front().page_bytes, kDiskBlock));
    const double pages = 12.0 * 8 * 63;
    EXPECT_NEAR(p.decode_lanes[Lane::kDiskWrite], real_share * pages * page / 5e8,
                0.02 * real_share * pages * page / 5e8)
        << share;
  }
}

TEST(CostModel, StreamedWeightsByHand) {
  Case one;
  one.profile = plain_machine(true);
  one.input = input_for(shape_of("opt-125m"), int64_t{1} << 40);
  one.input.device_budget_bytes = int64_t{1} << 40;
  one.job = {1, 8, 5, 0, 0};
  one.input.workload = {1, 8, 13, 0};
  Policy policy;
  policy.weights = {0, 0.5, 0.5};
  one.plan = make_plan(one.input, policy);
  const Prediction p =
      predict(*one.input.model, one.plan, one.profile, one.input.kv_dtype, one.job);
  const double passes = 1 + 4;
  const auto disk = static_cast<double>(one.plan.streamed_weight_bytes);
  const auto up = disk + static_cast<double>(one.plan.host_weight_bytes);
  EXPECT_NEAR(p.lane_seconds(Lane::kDiskRead), passes * disk / 1e9, 0.02 * passes * disk / 1e9);
  EXPECT_NEAR(p.lane_seconds(Lane::kHostToDevice), passes * up / 1e10, 0.02 * passes * up / 1e10);
  EXPECT_EQ(p.lane_seconds(Lane::kDiskWrite), 0);
  EXPECT_EQ(p.bottleneck(), Lane::kDiskRead);
}

}  // namespace
}  // namespace sluice::policy
