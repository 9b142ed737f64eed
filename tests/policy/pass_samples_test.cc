// Few passes stand for many: together they have the tokens, the attention and the logits of all of
// them, whatever prompts are cut into, and so no block of prompts is faster than its arithmetic.
#include "policy/pass_samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "policy/search.h"
#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/policy/machine_fixture.h"
#include "tests/policy/plan_fixture.h"
#include "tests/rounds.h"

namespace sluice::policy {
namespace {

int64_t drawn(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// As many of each size.
int64_t drawn_size(std::mt19937& random, int64_t most) {
  const double exponent = std::uniform_real_distribution<double>(0, 1)(random);
  return std::llround(std::pow(static_cast<double>(most), exponent));
}

struct PromptCase {
  ModelShape model;
  Profile profile;
  SearchRequest request;
  Policy policy;

  PromptCase(std::mt19937& random, const std::string& name, int64_t most_prompt)
      : model(shape_of(name)), profile(random_machine(random, random() % 3 != 0)) {
    const int64_t sequences = drawn(random, 1, 64);
    const int64_t prompt = drawn_size(random, most_prompt);
    const int64_t fresh = drawn(random, 1, 3);
    profile.device_bytes = profile.device ? 8192 * kGiB : 0;
    profile.host_bytes = profile.disk_bytes = 65536 * kGiB;
    request.input = input_for(model, profile.host_bytes);
    request.input.device_budget_bytes = profile.device_bytes;
    request.input.workload = {sequences, prompt, prompt + fresh, sequences * (prompt + fresh)};
    request.profile = &profile;
    request.job = {sequences, static_cast<double>(prompt), static_cast<double>(fresh), prompt,
                   fresh};
    policy.micro_batch_sequences = sequences;
    policy.micro_batch_tokens = drawn(random, 0, 1) ? prompt : 32 << drawn(random, 0, 8);
    policy.pass_tokens =
        policy.micro_batch_tokens * drawn(random, 1, 40) + drawn(random, 0, 1) * 17;
    const int64_t tokens = sequences * prompt;
    policy.pass_tokens = std::max(policy.pass_tokens, tokens / 800 + 1);
    if (policy.pass_tokens > 250 * policy.micro_batch_tokens)
      policy.micro_batch_tokens = policy.pass_tokens / 250;
    policy.kv = drawn(random, 0, 1) ? TierShares{0, 1, 0} : TierShares{1, 0, 0};
    if (drawn(random, 0, 3) == 0) policy.kv = {0.5, 0.25, 0.25};
    policy.weights = drawn(random, 0, 1) ? TierShares{0.5, 0.25, 0.25} : TierShares{0, 1, 0};
    if (!profile.device) return;
    policy.inplace_host_fraction = drawn(random, 0, 1) ? policy.weights.host / 2 : 0;
    policy.attention = drawn(random, 0, 3) ? AttentionPlace::kDevice : AttentionPlace::kHost;
  }
};

// What passes have to do, by kind.
struct PrefillSums {
  double tokens = 0, logits = 0, read = 0, up = 0, down = 0;
  std::vector<double> pairs;  // by group

  PrefillSums(const Plan& plan, const BlockPasses& block) : pairs(plan.kv.size()) {
    for (size_t i = 0; i < block.prefill_passes; ++i) {
      const PassWork& pass = block.passes[i];
      tokens += pass.passes * static_cast<double>(pass.tokens());
      for (const BatchWork& work : pass.work) {
        logits += pass.passes * static_cast<double>(work.logit_rows);
        for (size_t group = 0; group < pairs.size(); ++group) {
          const AttentionWork& of = work.attention[group];
          pairs[group] += pass.passes * (of.prefill_pairs + of.host_prefill_pairs +
                                         of.device_history_tokens + of.host_history_tokens);
        }
      }
      for (const MicroBatchLoad& load : pass.loads)
        for (const StateBytes& state : load.state) {
          read += pass.passes * static_cast<double>(state.load);
          up += pass.passes * static_cast<double>(state.up);
          down += pass.passes * static_cast<double>(state.down);
        }
    }
  }
};

TEST(PassSamples, HaveTheWorkOfAllPasses) {
  std::mt19937 random(48);
  for (int round = 0; round < rounds(200); ++round) {
    const std::string name = round % 2 ? "llama-3.1-8b" : "gemma-3-12b";
    const PromptCase one(random, name, 20000);
    const Plan plan = make_plan(one.request.input, one.policy);
    const auto sums = [&](int64_t most) {
      return PrefillSums(plan, block_passes(one.model, plan, one.request.job, most, 1));
    };
    const PrefillSums all = sums(1 << 20);
    SCOPED_TRACE(testing::Message()
                 << "round " << round << ": " << one.request.job.sequences << " of "
                 << one.request.job.prompt_tokens << ", " << policy_to_json(one.policy));
    EXPECT_DOUBLE_EQ(
        all.tokens, static_cast<double>(one.request.job.sequences) * one.request.job.prompt_tokens);
    for (const int64_t most : {1, 2, 3, 5}) {
      const PrefillSums some = sums(most);
      EXPECT_NEAR(some.tokens, all.tokens, 1e-9 * all.tokens) << most;
      EXPECT_GE(some.logits, all.logits * (1 - 1e-9)) << most;
      for (size_t group = 0; group < all.pairs.size(); ++group)
        EXPECT_NEAR(some.pairs[group], all.pairs[group], 1e-6 * all.pairs[group]) << most;
      // In whole pages, of which a chunk's last may have few tokens.
      EXPECT_NEAR(some.read, all.read, 0.1 * all.read) << most;
      EXPECT_NEAR(some.up, all.up, 0.1 * all.up) << most;
      EXPECT_NEAR(some.down, all.down, 0.1 * all.down) << most;
    }
  }
}

double most_flops(const Processor& processor) {
  double most = 0;
  for (const MatmulRate& row : processor.matmul) most = std::max(most, row.flops.value);
  return most;
}

// Of one prompt on the device, or without one on the host: products and causal attention.
double arithmetic_seconds(const PromptCase& one, const Plan& plan) {
  const int64_t prompt = one.request.input.workload.max_prompt_tokens;
  double flops = 0;
  for (size_t i = 0; i < one.model.sublayers.size(); ++i) {
    const SublayerShape& sublayer = one.model.sublayers[i];
    const auto rows =
        static_cast<double>(sublayer.kind == SublayerKind::kHead ? int64_t{1} : prompt);
    for (size_t w = 0; w < sublayer.weights.size(); ++w) {
      const WeightShape& weight = sublayer.weights[w];
      if (weight.kind != WeightKind::kMatrix) continue;
      const int64_t own = weight.rows - plan.classes.front().inplace_rows(i, w);
      flops += 2 * rows * static_cast<double>(own) * static_cast<double>(weight.cols);
    }
  }
  const Processor& processor = one.profile.device ? *one.profile.device : one.profile.host;
  double seconds = flops / most_flops(processor);
  if (plan.host_attends()) return seconds;
  const KvFormat kv = one.request.input.kv_dtype;
  for (const StateGroup& group : one.model.state_groups) {
    const double pairs = visible_pairs(0, prompt, group.state.window);
    const double of_pair = 4 * static_cast<double>(one.model.num_heads * group.state.width);
    const double layers = static_cast<double>(group.num_layers);
    if (prompt > 1) seconds += layers * prefill_attention_seconds(processor, kv, pairs * of_pair);
  }
  return seconds;
}

TEST(PassSamples, NPromptsTakeNTimesTheArithmeticOfOne) {
  std::mt19937 random(2048);
  for (int round = 0; round < rounds(200); ++round) {
    const char* const names[] = {"llama-3.1-8b", "gemma-3-12b", "opt-30b", "qwen3-30b-a3b"};
    const bool is_mixture = round % 4 == 3;  // whose tokens choose some experts
    PromptCase one(random, names[round % 4], 100000);
    // A chunk of one token is attended as in decode.
    AttentionRate& attention =
        (one.profile.device ? *one.profile.device : one.profile.host).attention.front();
    attention.decode_flops.value =
        std::min(attention.decode_flops.value, attention.prefill_flops.value);
    const SearchResult result = evaluate_policy(one.request, one.policy);
    const double wanted = is_mixture ? 0
                                     : static_cast<double>(one.request.job.sequences) *
                                           arithmetic_seconds(one, result.best.plan);
    for (const Prediction& p : {result.best.predicted, *result.best.simulated}) {
      EXPECT_GE(p.prefill_seconds * (1 + 1e-6), wanted)
          << "round " << round << ": " << one.request.job.sequences << " prompts of "
          << one.request.job.prompt_tokens << ", " << policy_to_json(one.policy);
      for (const double busy : p.prefill_lanes) EXPECT_LE(busy, p.prefill_seconds * (1 + 1e-6));
      for (const double busy : p.decode_lanes) EXPECT_LE(busy, p.decode_seconds * (1 + 1e-6));
    }
  }
}

// What the search was led to by samples that were less than the mean: blocks of a pass and a bit.
TEST(PassSamples, OnePromptMoreIsNotFaster) {
  const ModelShape& model = shape_of("llama-3.1-8b");
  const Profile profile = *shipped_profile("h100");
  double before = 0;
  for (int64_t sequences = 1; sequences <= 24; ++sequences) {
    SearchRequest request;
    request.input = input_for(model, profile.host_bytes);
    request.input.device_budget_bytes = profile.device_bytes;
    request.input.workload = {sequences, 6000, 6001, sequences * 6001};
    request.profile = &profile;
    request.job = {sequences, 6000, 1, 6000, 1};
    Policy policy;
    policy.micro_batch_sequences = sequences;
    policy.pass_tokens = 30000;
    const SearchResult result = evaluate_policy(request, policy);
    EXPECT_GT(result.best.predicted.prefill_seconds, before) << sequences;
    EXPECT_NEAR(result.best.simulated->prefill_seconds, result.best.predicted.prefill_seconds,
                0.03 * result.best.predicted.prefill_seconds);
    before = result.best.simulated->prefill_seconds;
  }
}

}  // namespace
}  // namespace sluice::policy
