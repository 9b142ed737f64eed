#include "policy/search.h"

#include <gtest/gtest.h>

#include <regex>

#include "policy/placement_lp.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"
#include "tests/rounds.h"

namespace sluice::policy {
namespace {

SearchRequest request_for(const ModelShape& model, const Profile& profile, int64_t device,
                          int64_t host, int64_t sequences) {
  SearchRequest request;
  request.input = input_for(model, host);
  request.input.device_budget_bytes = device;
  request.input.load_staging_bytes = kMiB;
  request.profile = &profile;
  request.job = {sequences, 64, 16, 64, 16};
  request.input.workload = {sequences, 64, 80, 80 * sequences};
  return request;
}

Policy block_of(int64_t sequences) {
  Policy policy;
  policy.micro_batch_sequences = sequences;
  policy.pass_tokens = 64 * sequences;
  return policy;
}

TEST(PlacementLp, NeverBeatenByRandomFeasibleShares) {
  std::mt19937 random(51);
  int solved = 0;
  for (int round = 0; round < 40; ++round) {
    const bool has_device = random() % 3 != 0;
    const Profile profile = random_machine(random, has_device);
    const ModelShape& model = shape_of("tinyllama-1.1b");
    const int64_t host = static_cast<int64_t>((1 + random() % 40)) * 128 * kMiB;
    const int64_t device = has_device ? static_cast<int64_t>(1 + random() % 12) * 256 * kMiB : 0;
    const SearchRequest request = request_for(model, profile, device, host, 1 + random() % 16);
    PlanMaker make_plan(request.input);
    Policy block = block_of(request.job.sequences);
    if (has_device && round % 2 == 0)
      block.larger_passes = {{request.job.sequences + 1, 0, block.attention, 0}};
    PassMaker make_passes = sampled_passes(*request.input.model, request.job);
    const PlacementLp lp(request, block, make_plan, make_passes);
    EXPECT_EQ(lp.varies(Share::kLargeInplace), !block.larger_passes.empty());
    const auto best = lp.solve(0);
    if (!best) continue;
    ++solved;
    ASSERT_TRUE(lp.fits(best->shares)) << round;
    const double seconds = lp.seconds(best->shares);
    ASSERT_NEAR(seconds, best->prefill_seconds + best->decode_seconds, 1e-5 * seconds);
    for (int other = 0; other < 400; ++other) {
      std::array<double, kShareCount> shares{};
      const auto draw = [&](std::initializer_list<Share> kind) {
        double left = random() % 4 == 0 ? 0 : 1;
        for (const Share share : kind) {
          if (!lp.varies(share)) continue;
          const double taken = left * std::uniform_real_distribution<double>(0, 1)(random);
          shares[static_cast<size_t>(share)] = taken;
          left -= taken;
        }
      };
      draw({Share::kWeightsInplace, Share::kWeightsHost, Share::kWeightsDisk});
      draw({Share::kKvHost, Share::kKvDisk});
      draw({Share::kActivationsHost, Share::kActivationsDisk});
      if (lp.varies(Share::kLargeInplace))
        shares[static_cast<size_t>(Share::kLargeInplace)] =
            (shares[static_cast<size_t>(Share::kWeightsInplace)] +
             shares[static_cast<size_t>(Share::kWeightsHost)]) *
            std::uniform_real_distribution<double>(0, 1)(random);
      if (!lp.fits(shares)) continue;
      ASSERT_GE(lp.seconds(shares), seconds * (1 - kAsFast - 1e-6)) << "round " << round;
    }
  }
  EXPECT_GT(solved, 20);
}

TEST(PlacementLp, NothingFitsWhereNothingCan) {
  const Profile profile = plain_machine(false);
  const SearchRequest request = request_for(shape_of("opt-6.7b"), profile, 0, 8 * kMiB, 1);
  PlanMaker make_plan(request.input);
  PassMaker make_passes = sampled_passes(*request.input.model, request.job);
  EXPECT_FALSE(PlacementLp(request, block_of(1), make_plan, make_passes).solve(0));
}

TEST(Search, AnswersFitAndAreDeterministic) {
  std::mt19937 random(52);
  for (int round = 0; round < 8; ++round) {
    const bool has_device = round % 2 == 0;
    const Profile profile = random_machine(random, has_device);
    const SearchRequest request =
        request_for(shape_of("tinyllama-1.1b"), profile, has_device ? 1 * kGiB : 0,
                    static_cast<int64_t>(1 + random() % 4) * kGiB, 1 + random() % 40);
    const SearchResult found = search_policy(request);
    EXPECT_TRUE(fits(request.input, found.best.plan));
    EXPECT_NO_THROW(validate(found.best.policy));
    const SearchResult again = search_policy(request);
    EXPECT_EQ(policy_to_json(again.best.policy), policy_to_json(found.best.policy));
    // What was placed is what was asked, to within a hundredth of the model's bytes.
    const Plan& plan = found.best.plan;
    const auto all = static_cast<double>(plan.weight_bytes);
    const double device_share =
        found.best.policy.weights.device + (has_device ? 0 : found.best.policy.weights.host);
    EXPECT_NEAR(static_cast<double>(plan.resident_weight_bytes) / all, device_share, 0.01);
    if (has_device) {
      EXPECT_NEAR(static_cast<double>(plan.host_home_bytes) / all, found.best.policy.weights.host,
                  0.01);
    }
  }
}

double seconds_of(const SearchResult& result, int64_t sequences) {
  const Prediction& p = result.best.simulated ? *result.best.simulated : result.best.predicted;
  return p.seconds() *
         std::ceil(static_cast<double>(sequences) / static_cast<double>(p.block_sequences));
}

TEST(Search, MoreMemoryIsNeverMuchSlower) {
  const Profile profile = plain_machine(true);
  double before = 1e300;
  for (const int64_t host : {kGiB, 2 * kGiB, 4 * kGiB, 8 * kGiB}) {
    const SearchRequest request =
        request_for(shape_of("tinyllama-1.1b"), profile, kGiB / 2, host, 16);
    const double seconds = seconds_of(search_policy(request), 16);
    EXPECT_LE(seconds, before * 1.02) << host;
    before = seconds;
  }
}

TEST(Search, WhatFitsStaysWhereItIsComputed) {
  for (const bool has_device : {false, true}) {
    const Profile profile = plain_machine(has_device);
    const SearchRequest request =
        request_for(shape_of("opt-125m"), profile, has_device ? 8 * kGiB : 0, 8 * kGiB, 4);
    const SearchResult found = search_policy(request);
    EXPECT_EQ(found.best.policy.weights.device, 1) << has_device;
    EXPECT_EQ(found.best.policy.kv.device, 1);
    EXPECT_EQ(found.best.plan.streamed_weight_bytes, 0);
    EXPECT_EQ(found.best.policy.inplace_host_fraction, 0);
  }
}

TEST(Search, KeepsToItsConstraints) {
  const Profile profile = plain_machine(true);
  SearchRequest request = request_for(shape_of("tinyllama-1.1b"), profile, kGiB, 4 * kGiB, 16);
  request.constraints.micro_batch_sequences = 4;
  request.constraints.micro_batches = 2;
  request.constraints.attention = AttentionPlace::kHost;
  request.constraints.weights = TierShares{0.25, 0.5, 0.25};
  request.constraints.inplace_host_fraction = 0.0;
  const Policy policy = search_policy(request).best.policy;
  EXPECT_EQ(policy.micro_batch_sequences, 4);
  EXPECT_EQ(policy.micro_batches, 2);
  EXPECT_EQ(policy.attention, AttentionPlace::kHost);
  EXPECT_NEAR(policy.weights.device, 0.25, 1e-6);
  EXPECT_NEAR(policy.weights.disk, 0.25, 1e-6);
  EXPECT_EQ(policy.inplace_host_fraction, 0);
}

TEST(Search, LatencyAsksForOneSequenceAndTheBoundHolds) {
  const Profile profile = plain_machine(true);
  SearchRequest request = request_for(shape_of("tinyllama-1.1b"), profile, kGiB, 4 * kGiB, 64);
  const SearchResult throughput = search_policy(request);
  request.objective = Objective::kLatency;
  const SearchResult latency = search_policy(request);
  EXPECT_EQ(latency.best.policy.block_sequences(), 1);
  EXPECT_LE(latency.best.predicted.seconds(), throughput.best.predicted.seconds());
  request.objective = Objective::kThroughputUnderLatency;
  const auto time_of = [](const SearchResult& result) {
    return result.best.simulated ? result.best.simulated->seconds()
                                 : result.best.predicted.seconds();
  };
  request.latency_bound_seconds = (time_of(latency) + time_of(throughput)) / 2;
  EXPECT_LE(time_of(search_policy(request)), request.latency_bound_seconds * 1.03);
}

TEST(Search, SaysWhatIsShortAndASuggestionThatWorks) {
  const Profile profile = plain_machine(true);
  SearchRequest request = request_for(shape_of("opt-6.7b"), profile, 16 * kMiB, 64 * kMiB, 8);
  try {
    search_policy(request);
    FAIL() << "a 6.7B model in 80 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(error.text().find("device memory is"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("host memory is"), std::string::npos) << error.text();
    std::smatch found;
    const std::string mend = error.mend();
    ASSERT_TRUE(std::regex_search(
        mend, found,
        std::regex(
            "`device_budget_bytes` ([0-9.]+[KMG]iB) and `memory_budget_bytes` ([0-9.]+[KMG]iB)")))
        << mend;
    request.input.device_budget_bytes = parse_bytes(found[1].str(), "x") + kMiB;
    request.input.memory_budget_bytes = parse_bytes(found[2].str(), "x") + kMiB;
    EXPECT_NO_THROW(search_policy(request)) << mend;
  }
}

// Where one block fits a search finds one, however little room there is.
TEST(Search, FindsAPolicyWhereverTheLeastFits) {
  const Profile profile = plain_machine(true);
  int found = 0, short_of = 0;
  for (const bool has_disk : {true, false})
    for (int64_t device = 96; device <= 384; device += is_sanitized() ? 24 : 8) {
      SearchRequest request = request_for(shape_of("tinyllama-1.1b"), profile, device * kMiB,
                                          (has_disk ? 1 : 4) * kGiB, 4);
      request.input.has_disk = has_disk;
      request.job = {4, 700, 64, 896, 64};
      request.input.workload = {4, 896, 960, 4 * 960};
      try {
        const SearchResult result = search_policy(request);
        EXPECT_TRUE(fits(request.input, result.best.plan));
        ++found;
      } catch (const Error& error) {
        EXPECT_EQ(error.text().find("constraints"), std::string::npos)
            << device << " MiB: " << error.what();
        ++short_of;
      }
    }
  EXPECT_GT(found, 10);
  EXPECT_GT(short_of, 0) << "no corner was met";
}

TEST(Search, RefusesQuestionsWithoutSense) {
  const Profile cpu = plain_machine(false);
  SearchRequest request = request_for(shape_of("opt-125m"), cpu, kGiB, kGiB, 1);
  EXPECT_THROW(search_policy(request), Error) << "a device budget without a device";
  request.input.device_budget_bytes = 0;
  request.job.sequences = 0;
  EXPECT_THROW(search_policy(request), Error);
  request.job.sequences = 1;
  request.objective = Objective::kThroughputUnderLatency;
  EXPECT_THROW(search_policy(request), Error) << "no bound";
  request.objective = Objective::kThroughput;
  Profile broken = cpu;
  broken.disks.front().read.value = 0;
  request.profile = &broken;
  EXPECT_THROW(search_policy(request), Error);
}

// What the straight lines of the linear program leave of the memory is filled: with all that is
// multiplied in memory there is no ring, and tables are read by row.
TEST(Search, StreamsNothingThatMemoryHasRoomFor) {
  const ModelShape& model = shape_of("llama-3-8b");
  const Profile profile = plain_machine(false);
  const auto table = static_cast<double>(
      model.rows_bytes(model.sublayers[0].weights[0], model.sublayers[0].weights[0].rows));
  for (const int64_t sequences : {1, 8}) {
    SearchRequest request = request_for(model, profile, 0, int64_t{1} << 42, sequences);
    Policy whole = block_of(sequences);
    const double away = table / static_cast<double>(model.weight_bytes()) - 1e-4;
    whole.weights = {1 - away, 0, away};
    const Plan least = make_plan(request.input, whole);
    ASSERT_EQ(least.streamed_weight_bytes, 0);
    request.input.memory_budget_bytes = least.memory_bytes() + 16 * kMiB;
    EXPECT_EQ(search_policy(request).best.plan.streamed_weight_bytes, 0) << sequences;
    for (const int64_t less : {32 * kMiB, 400 * kMiB, 4 * kGiB}) {
      request.input.memory_budget_bytes = least.memory_bytes() - less;
      const Plan plan = search_policy(request).best.plan;
      EXPECT_LT(static_cast<double>(request.input.memory_budget_bytes - plan.memory_bytes()),
                0.004 * static_cast<double>(plan.weight_bytes))
          << sequences << " sequences, " << format_bytes(less) << " less";
    }
  }
}

}  // namespace
}  // namespace sluice::policy
