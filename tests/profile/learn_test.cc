// A wrong profile mends itself by what runs find: here a run is what the true machine would do with
// the policy that the wrong profile led to.
#include "src/profile/learn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "policy/search.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"

namespace sluice {
namespace {

using policy::Figure;
using policy::MatmulRate;
using policy::Profile;

Figure figure(double value) { return {value, 0, policy::FigureSource::kMeasured, ""}; }

// Two cores: products bound by the memory with few rows, by arithmetic with many.
Profile true_machine() {
  Profile out = policy::plain_machine(false);
  policy::Processor& host = out.host;
  host.memory_read = figure(25e9);
  host.matmul.clear();
  for (const auto& [m, flops] : {std::pair{1, 22e9},
                                 {2, 44e9},
                                 {4, 85e9},
                                 {8, 160e9},
                                 {16, 260e9},
                                 {32, 350e9},
                                 {64, 400e9},
                                 {128, 430e9},
                                 {512, 450e9}})
    host.matmul.push_back({WeightFormat::plain(DType::kBF16), m, 4096, 2048, figure(flops)});
  host.attention = {{DType::kBF16, figure(15e9), figure(2e11), figure(6e10)}};
  host.launch_seconds = figure(5e-6);
  policy::Disk& disk = out.disks.front();
  disk.read = figure(2.5e9);
  disk.busy_read = disk.mixed_read = figure(2.2e9);
  disk.write = disk.mixed_write = figure(1e9);
  out.read_delay = figure(3e-11);
  return out;
}

struct Job {
  policy::PlanInput input;
  policy::JobShape shape;
};

Job seven_billion(int64_t budget) {
  Job job{policy::input_for(policy::shape_of("llama-2-7b"), budget), {}};
  job.shape.sequences = 32;
  job.shape.prompt_tokens = 32;
  job.shape.max_prompt_tokens = 32;
  job.shape.new_tokens = 32;
  job.shape.max_new_tokens = 32;
  job.input.kv_dtype = DType::kBF16;
  job.input.workload.sequences = 32;
  job.input.workload.max_prompt_tokens = 32;
  job.input.workload.max_total_tokens = 64;
  job.input.workload.total_tokens = int64_t{32} * 64;
  return job;
}

policy::Plan planned_on(const Profile& profile, const Job& job) {
  policy::SearchRequest request;
  request.input = job.input;
  request.profile = &profile;
  request.job = job.shape;
  return policy::search_policy(request).best.plan;
}

double rate_on(const Profile& machine, const policy::Plan& plan, const Job& job) {
  return policy::simulate_block(*job.input.model, plan, machine, job.input.kv_dtype, job.shape)
      .tokens_per_second();
}

void add_batch(const Profile& machine, const Job& job, const policy::BatchWork& work, double times,
               policy::KernelTally& tally, double& seconds) {
  const ModelShape& model = *job.input.model;
  for (const SublayerShape& sublayer : model.sublayers) {
    const bool is_head = sublayer.kind == SublayerKind::kHead;
    const int64_t m = is_head ? work.logit_rows : work.tokens;
    if (m == 0 || sublayer.kind == SublayerKind::kEmbed) continue;
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.kind != WeightKind::kMatrix) continue;
      const WeightFormat format = model.format_of(weight);
      const int64_t calls = std::llround(times);
      const double took =
          static_cast<double>(calls) *
          policy::matmul_seconds(machine.host, format, false, m, weight.rows, weight.cols);
      tally.add(policy::ProductTimes{format, false, m, weight.rows, weight.cols, calls, took});
      seconds += took;
    }
  }
  const double pair_flops =
      4 * static_cast<double>(model.num_heads * model.head_dim * model.num_layers);
  policy::AttentionTimes attention{job.input.kv_dtype, work.attention.front().prefill_pairs > 0, 0,
                                   0, 0};
  if (attention.is_prefill) {
    attention.flops = work.attention.front().prefill_pairs * pair_flops;
    attention.seconds =
        policy::prefill_attention_seconds(machine.host, attention.kv_dtype, attention.flops);
  } else {
    const double tokens = work.attention.front().device_history_tokens;
    attention.bytes = tokens * static_cast<double>(model.state_token_bytes(attention.kv_dtype));
    attention.flops = tokens * pair_flops;
    attention.seconds = policy::decode_attention_seconds(machine.host, attention.kv_dtype,
                                                         attention.bytes, attention.flops);
  }
  tally.add(attention);
  seconds += attention.seconds;
}

// What a run of `plan` on `machine` finds.
RunFindings run_on(const Profile& machine, const policy::Plan& plan, const Job& job) {
  policy::KernelTally tally;
  RunFindings out;
  const policy::BlockPasses block = policy::block_passes(*job.input.model, plan, job.shape, 3, 3);
  const double blocks =
      std::ceil(static_cast<double>(job.shape.sequences) / static_cast<double>(block.sequences));
  double passes = 0;
  for (size_t i = 0; i < block.passes.size(); ++i) {
    const double times = blocks * (block.passes[i].passes);
    passes += times;
    for (const policy::BatchWork& work : block.passes[i].work)
      add_batch(machine, job, work, times, tally, out.compute_seconds);
  }
  const double bytes = passes * static_cast<double>(plan.streamed_weight_bytes);
  const double reading = bytes / machine.disk_read();
  out.kernels = tally.times();
  out.transfers[Lane::kDiskRead] = {static_cast<int64_t>(bytes / (32 << 20)) + 1,
                                    static_cast<int64_t>(bytes), reading};
  out.wall_seconds = std::max(out.compute_seconds, reading);
  out.weight_bytes = job.input.model->weight_bytes();
  return out;
}

using Poison = std::function<void(Profile&)>;

void scale_products(Profile& profile, double factor, int64_t from_rows) {
  for (MatmulRate& row : profile.host.matmul)
    if (row.m >= from_rows) row.flops.value *= factor;
}

void scale_all(Profile& profile, double factor) {
  scale_products(profile, factor, 1);
  profile.host.memory_read.value *= factor;
  for (policy::AttentionRate& row : profile.host.attention)
    for (Figure* one : {&row.decode_bytes, &row.prefill_flops, &row.decode_flops})
      one->value *= factor;
}

void scale_disk(Profile& profile, double factor) {
  policy::Disk& disk = profile.disks.front();
  for (Figure* one : {&disk.read, &disk.busy_read, &disk.mixed_read}) one->value *= factor;
}

class PoisonedProfile : public ::testing::TestWithParam<std::pair<const char*, Poison>> {};

TEST_P(PoisonedProfile, PlansAsACleanOneAfterTwoRuns) {
  const Profile machine = true_machine();
  for (const int64_t budget : {3 * kGiB, 6 * kGiB}) {
    const Job job = seven_billion(budget);
    const double best = rate_on(machine, planned_on(machine, job), job);
    Profile profile = machine;
    GetParam().second(profile);
    for (int run = 0; run < 2; ++run)
      profile = learn(profile, run_on(machine, planned_on(profile, job), job)).profile;
    policy::validate(profile);
    const policy::Plan plan = planned_on(profile, job);
    EXPECT_GE(rate_on(machine, plan, job), 0.95 * best)
        << GetParam().first << " at " << format_bytes(budget);
    // And what it expects is what comes.
    EXPECT_NEAR(std::log(rate_on(profile, plan, job) / rate_on(machine, plan, job)), 0, 0.25)
        << GetParam().first << " at " << format_bytes(budget);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Learn, PoisonedProfile,
    ::testing::Values(
        std::pair{"computing five times too slow", Poison([](Profile& p) { scale_all(p, 0.2); })},
        std::pair{"computing five times too fast", Poison([](Profile& p) { scale_all(p, 5); })},
        std::pair{"products of many rows too slow",
                  Poison([](Profile& p) { scale_products(p, 0.2, 16); })},
        std::pair{"products of few rows too slow", Poison([](Profile& p) {
                    scale_products(p, 0.2, 1);
                    scale_products(p, 5, 16);
                  })},
        std::pair{"memory too slow", Poison([](Profile& p) { p.host.memory_read.value *= 0.2; })},
        std::pair{"the disk too slow", Poison([](Profile& p) { scale_disk(p, 0.2); })},
        std::pair{"the disk too fast", Poison([](Profile& p) { scale_disk(p, 5); })},
        std::pair{"delays of reads too long", Poison([](Profile& p) { p.read_delay.value *= 5; })},
        std::pair{"every rate by chance", Poison([](Profile& p) {
                    std::mt19937 random(7);
                    for (MatmulRate& row : p.host.matmul)
                      row.flops.value *=
                          std::pow(5.0, std::uniform_real_distribution<double>(-1, 0)(random));
                  })}),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(Learn, ARunThatFindsWhatTheProfileSaysChangesNothing) {
  const Profile machine = true_machine();
  const Job job = seven_billion(4 * kGiB);
  RunFindings found = run_on(machine, planned_on(machine, job), job);
  found.transfers.clear();  // whose delay would be taken off what the kernels took
  const Lesson lesson = learn(machine, found);
  EXPECT_LT(lesson.most_change, 1.01) << lesson.of;
}

TEST(Learn, BesideOtherProcessesOnlyFasterRatesAreBelieved) {
  const Profile machine = true_machine();
  const Job job = seven_billion(4 * kGiB);
  RunFindings found = run_on(machine, planned_on(machine, job), job);
  found.transfers.clear();
  found.is_quiet = false;
  Profile too_fast = machine;
  scale_all(too_fast, 3);
  EXPECT_EQ(learn(too_fast, found).most_change, 1) << "what was slower may have been the others";
  Profile too_slow = machine;
  scale_all(too_slow, 0.5);
  const Lesson lesson = learn(too_slow, found);
  EXPECT_GT(lesson.most_change, 1.9);
  EXPECT_FALSE(lesson.of.empty());
}

TEST(Learn, NothingChangesByMoreThanFourAtATimeAndShortRunsSayLittle) {
  const Profile machine = true_machine();
  const auto after = [&](double ratio, double seconds, Trust trust) {
    RunFindings found;
    const double call = 2.0 * 8 * 4096 * 2048 / (160e9 * ratio);
    found.kernels.products = {{WeightFormat::plain(DType::kBF16), false, 8, 4096, 2048,
                               std::max<int64_t>(std::llround(seconds / call), 1), seconds}};
    const Profile learned = learn(machine, found, trust).profile;
    for (const MatmulRate& row : learned.host.matmul)
      if (row.m == 8) return row.flops.value / 160e9;
    return 0.0;
  };
  EXPECT_NEAR(after(1000, 100, Trust::kByEvidence), 4, 0.01);
  EXPECT_NEAR(after(0.001, 100, Trust::kByEvidence), 0.25, 0.001);
  EXPECT_LT(after(2, 0.01, Trust::kByEvidence), 1.1) << "ten milliseconds say little";
  EXPECT_NEAR(after(2, 0.01, Trust::kAll), 2, 0.2) << "unless they are asked to";
}

TEST(Learn, ProductsOfAnotherSizeGetRatesOfTheirOwn) {
  const Profile machine = true_machine();
  RunFindings found;
  // A tiny model's: ten times slower than large ones.
  const double call = 2.0 * 4 * 288 * 288 / 8.5e9;
  found.kernels.products = {
      {WeightFormat::plain(DType::kBF16), false, 4, 288, 288, 100000, 100000 * call}};
  const Profile learned = learn(machine, found).profile;
  const auto seconds = [](const Profile& profile, int64_t n, int64_t k) {
    return policy::matmul_seconds(profile.host, DType::kBF16, 4, n, k);
  };
  EXPECT_EQ(seconds(learned, 4096, 4096), seconds(machine, 4096, 4096));
  EXPECT_GT(seconds(learned, 288, 288), 2 * seconds(machine, 288, 288));
  EXPECT_EQ(learned.host.matmul.size(), 2 * machine.host.matmul.size());
  EXPECT_EQ(learn(learned, found).profile.host.matmul.size(), learned.host.matmul.size()) << "once";
}

TEST(Learn, ProductsOfKindsThatTheProfileDoesNotKnowGetRatesOfTheirOwn) {
  const Profile machine = true_machine();
  const auto seconds = [](const Profile& profile, const WeightFormat& format, int64_t m) {
    return policy::matmul_seconds(profile.host, format, false, m, 4096, 4096);
  };
  for (const char* name : {"int4-g64", "q4_k", "q6_k", "iq1", "mxfp4", "f32"}) {
    const WeightFormat format = *parse_weight_format(name);
    const double planned = seconds(machine, format, 8);
    RunFindings found;
    found.kernels.products = {{format, false, 8, 4096, 4096, 1000, 2000 * planned}};
    EXPECT_GT(seconds(learn(machine, found).profile, format, 8), 1.5 * planned) << name;
    const Lesson lesson = learn(machine, found, Trust::kAll);
    EXPECT_NEAR(seconds(lesson.profile, format, 8), 2 * planned, 0.2 * planned) << name;
    EXPECT_EQ(seconds(lesson.profile, WeightFormat::plain(DType::kBF16), 8),
              seconds(machine, WeightFormat::plain(DType::kBF16), 8))
        << name;
    EXPECT_NE(lesson.of.find(std::string(name).substr(0, 4)), std::string::npos) << lesson.of;
    // What was right stays: rows that nothing was found of are as they were planned.
    found.kernels.products.front().seconds = 1000 * planned;
    const Profile same = learn(machine, found).profile;
    for (const int64_t m : {1, 3, 8, 64, 100, 512, 2000})
      EXPECT_NEAR(seconds(same, format, m) / seconds(machine, format, m), 1, 0.2)
          << name << ", " << m << " rows";
    EXPECT_EQ(learn(same, found).profile.host.matmul.size(), same.host.matmul.size()) << "once";
    EXPECT_NO_THROW(policy::validate(same));
  }
}

TEST(Learn, AttentionOfKindsThatTheProfileDoesNotKnowIsLeftAlone) {
  const Profile machine = true_machine();
  RunFindings found;
  found.kernels.attention = {{KvFormat(KvEncoding::kInt8), false, 1e9, 1e9, 10.0}};
  EXPECT_EQ(learn(machine, found).most_change, 1);
}

TEST(Learn, ADiskWithTimeToSpareIsNotCalledSlow) {
  const Profile machine = true_machine();
  RunFindings found;
  found.wall_seconds = 10;
  found.transfers[Lane::kDiskRead] = {100, int64_t{100} << 25, 4};  // 0.8 GB/s
  EXPECT_EQ(learn(machine, found).most_change, 1) << "the ring had no room";
  found.transfers[Lane::kDiskRead].busy_seconds = 9.9;
  EXPECT_LT(learn(machine, found).profile.disk_read(), 0.5 * machine.disk_read());
  found.transfers[Lane::kDiskRead].tasks = 1 << 20;
  EXPECT_EQ(learn(machine, found).most_change, 1) << "small pieces wait";
}

TEST(KernelTally, AddsCallsOfAKindAndStaysBounded) {
  policy::KernelTally tally;
  const WeightFormat int4 = *parse_weight_format("int4-g64");
  for (int i = 0; i < 3; ++i) tally.add(policy::ProductTimes{int4, true, 8, 64, 128, 1, 0.5});
  tally.add(policy::ProductTimes{int4, false, 8, 64, 128, 1, 0.5});
  ASSERT_EQ(tally.times().products.size(), 2u);
  EXPECT_EQ(tally.times().products[0].calls + tally.times().products[1].calls, 4);
  for (int64_t m = 1; m < 3000; ++m)
    tally.add(policy::ProductTimes{int4, true, m, 64, 128, 1, 0.5});
  EXPECT_EQ(tally.times().products.size(), policy::KernelTally::kMostSizes);
  tally.add(policy::AttentionTimes{DType::kBF16, false, 10, 20, 1});
  tally.add(policy::AttentionTimes{DType::kBF16, false, 10, 20, 1});
  ASSERT_EQ(tally.times().attention.size(), 1u);
  EXPECT_EQ(tally.times().attention[0].bytes, 20);
}

}  // namespace
}  // namespace sluice
