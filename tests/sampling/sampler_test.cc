#include "src/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "src/base/error.h"
#include "tests/sampling/extremes.h"

namespace sluice::sampling {
namespace {

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

Choice pick(const SamplingParams& params, const std::vector<float>& logits,
            const History& history = {}, std::vector<int32_t> eos = {}) {
  Workspace workspace;
  return Sampler(params, std::move(eos)).pick(logits, history, workspace);
}

std::vector<int32_t> kept(const std::vector<float>& probabilities) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] > 0) tokens.push_back(static_cast<int32_t>(i));
  }
  return tokens;
}

template <typename Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::kInternal, "no error");
}

TEST(Sampler, GreedyTakesTheLowestIndexOfTies) {
  EXPECT_EQ(pick(greedy(), {1, 7, 3, 7, 7}).token, 1);
  EXPECT_EQ(pick(greedy(), {-kInf, -3, -kInf}).token, 1);
}

TEST(Sampler, GreedyComesAfterPenalties) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2;
  const std::vector<int32_t> prompt{1};
  EXPECT_EQ(pick(params, {4, 7, 3}, {prompt, {}}).token, 0);
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeOnce) {
  SamplingParams params;
  params.repetition_penalty = 2;
  const std::vector<int32_t> prompt{0, 0, 1, 99, -5};  // repeats count once, foreign ids not at all
  const std::vector<int32_t> output{0};
  const std::vector<float> logits{2, -1, 0.5F};
  const auto found = distribution(logits, params, {prompt, output});
  const auto expected = distribution(std::vector<float>{1, -2, 0.5F}, SamplingParams{}, {});
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(found[i], expected[i]);
}

TEST(Sampler, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParams params;
  params.presence_penalty = 0.5F;
  params.frequency_penalty = 0.25F;
  const std::vector<int32_t> prompt{2, 2, 2};
  const std::vector<int32_t> output{0, 1, 0, 0};
  const auto found = distribution(std::vector<float>{1, 1, 1}, params, {prompt, output});
  const auto expected =
      distribution(std::vector<float>{1 - 0.5F - 0.75F, 1 - 0.5F - 0.25F, 1}, SamplingParams{}, {});
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(found[i], expected[i]);
}

TEST(Sampler, WorkspaceForgetsOneSequenceBeforeTheNext) {
  SamplingParams params = greedy();
  params.frequency_penalty = 2;
  params.repetition_penalty = 1.5F;
  const Sampler sampler(params, {});
  Workspace workspace;
  const std::vector<float> logits{3, 2.9F, 0};
  const std::vector<int32_t> output{0, 0};
  EXPECT_EQ(sampler.pick(logits, {{}, output}, workspace).token, 1);
  EXPECT_EQ(sampler.pick(logits, {}, workspace).token, 0);
  EXPECT_EQ(sampler.pick(std::vector<float>{0, 1}, {}, workspace).token, 1);  // another vocabulary
}

TEST(Sampler, MinTokensKeepsEndsAwayUntilReached) {
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {1};
  const std::vector<float> logits{9, 8, 7, 6};
  const std::vector<int32_t> output{2, 2};
  for (size_t length = 0; length < 2; ++length) {
    EXPECT_EQ(pick(params, logits, {{}, std::span(output).first(length)}, {0}).token, 2) << length;
  }
  EXPECT_EQ(pick(params, logits, {{}, output}, {0}).token, 0);
}

TEST(Sampler, LogitBiasForcesAndForbids) {
  SamplingParams params = greedy();
  params.logit_bias = {{2, 100.0F}};
  EXPECT_EQ(pick(params, {9, 8, 7}).token, 2);
  params.logit_bias = {{0, -100.0F}};
  EXPECT_EQ(pick(params, {9, 8, 7}).token, 1);
  params.logit_bias = {{3, 1.0F}};
  const Error error = error_of([&] { pick(params, {9, 8, 7}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUser);
  EXPECT_NE(std::string(error.what()).find("token 3"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("0 to 2"), std::string::npos);
}

TEST(Sampler, TopKKeepsTokensThatTieWithTheLast) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(kept(distribution(std::vector<float>{3, 2, 1, 2}, params, {})),
            (std::vector<int32_t>{0, 1, 3}));
  params.top_k = 100;
  EXPECT_EQ(kept(distribution(std::vector<float>{3, 2, 1, 2}, params, {})).size(), 4U);
}

TEST(Sampler, TopPKeepsTheSmallestPrefixAndLowerIdsOfTies) {
  const std::vector<float> logits{std::log(0.1F), std::log(0.4F), std::log(0.1F), std::log(0.4F)};
  SamplingParams params;
  const std::vector<std::pair<float, std::vector<int32_t>>> cases = {
      {0.0F, {1}},     {0.3F, {1}},        {0.41F, {1, 3}},
      {0.79F, {1, 3}}, {0.81F, {0, 1, 3}}, {0.95F, {0, 1, 2, 3}}};
  for (const auto& [top_p, tokens] : cases) {
    params.top_p = top_p;
    EXPECT_EQ(kept(distribution(logits, params, {})), tokens) << top_p;
  }
}

TEST(Sampler, MinPComparesWithTheLargest) {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  SamplingParams params;
  params.min_p = 0.55F;
  EXPECT_EQ(kept(distribution(logits, params, {})), (std::vector<int32_t>{0, 1}));
  params.min_p = 1;
  EXPECT_EQ(kept(distribution(logits, params, {})), (std::vector<int32_t>{0}));
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedLogits) {
  SamplingParams params = greedy();
  params.logit_bias = {{2, 100.0F}};
  params.logprobs = 2;
  const std::vector<float> logits{3, 1, -2, 3};
  const Choice choice = pick(params, logits);
  const double normaliser = std::log(2 * std::exp(3.0) + std::exp(1.0) + std::exp(-2.0));
  EXPECT_EQ(choice.token, 2);
  EXPECT_NEAR(choice.logprob, -2 - normaliser, 1e-6);
  ASSERT_EQ(choice.top.size(), 2U);
  EXPECT_EQ(choice.top[0].token, 0);
  EXPECT_EQ(choice.top[1].token, 3);
  EXPECT_NEAR(choice.top[1].logprob, 3 - normaliser, 1e-6);
}

TEST(Sampler, LogprobsAreLeftOutUnlessAskedFor) {
  const std::vector<float> logits{3, 1};
  EXPECT_TRUE(std::isnan(pick(greedy(), logits).logprob));
  SamplingParams params = greedy();
  params.logprobs = 0;
  const Choice choice = pick(params, logits);
  EXPECT_NEAR(choice.logprob, -std::log1p(std::exp(-2.0)), 1e-6);
  EXPECT_TRUE(choice.top.empty());
  params.logprobs = 20;  // more than the vocabulary
  EXPECT_EQ(pick(params, logits).top.size(), 2U);
}

TEST(Sampler, NamesTheTokenWhoseLogitIsNoNumber) {
  for (const float temperature : {0.0F, 1.0F}) {
    for (const float bad : {kNan, kInf}) {
      SamplingParams params;
      params.temperature = temperature;
      const Error error = error_of([&] { pick(params, {1, 2, bad, 9}); });
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      EXPECT_EQ(std::string(error.what()).find("--dtype"), std::string::npos) << "no such flag";
      EXPECT_NE(std::string(error.what()).find("token 2"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::isnan(bad) ? "NaN" : "inf"), std::string::npos);
    }
  }
}

TEST(Sampler, NoTokenLeftIsAnError) {
  EXPECT_EQ(error_of([] { pick(greedy(), {-kInf, -kInf}); }).kind(), ErrorKind::kFile);
  SamplingParams params;
  params.min_tokens = 1;
  params.stop_token_ids = {1};
  EXPECT_EQ(error_of([&] { pick(params, {1, 2}, {}, {0}); }).kind(), ErrorKind::kUser);
}

TEST(Sampler, ExtremeLogitsStayFinite) {
  const float huge = std::numeric_limits<float>::max();
  const auto probabilities =
      distribution(std::vector<float>{huge, -huge, huge, -kInf}, SamplingParams{}, {});
  EXPECT_EQ(probabilities, (std::vector<float>{0.5F, 0, 0.5F, 0}));
  SamplingParams params;
  params.temperature = 1e-30F;
  EXPECT_EQ(distribution(std::vector<float>{1, 1.001F, 0}, params, {}),
            (std::vector<float>{0, 1, 0}));
  params.temperature = 1;
  params.repetition_penalty = 0.01F;
  const std::vector<int32_t> prompt{0};
  const Error error = error_of([&] { pick(params, {huge, 1}, {prompt, {}}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUser);
}

TEST(Sampler, NothingIsAllocatedOnceTheWorkspaceHasGrown) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(4096);
  SamplingParams params;
  params.top_k = 100;
  params.top_p = 0.9F;
  params.min_p = 0.01F;
  params.repetition_penalty = 1.1F;
  params.presence_penalty = 0.1F;
  const Sampler sampler(params, {});
  Workspace workspace;
  std::vector<int32_t> output(64);
  std::iota(output.begin(), output.end(), 0);
  int64_t bytes = 0;
  for (int step = 0; step < 50; ++step) {
    for (float& logit : logits) logit = normal(random);
    sampler.pick(logits, {output, output}, workspace);
    if (step == 0) bytes = workspace.bytes();
    EXPECT_EQ(workspace.bytes(), bytes) << step;
  }
  EXPECT_GT(bytes, 0);
}

}  // namespace
}  // namespace sluice::sampling
