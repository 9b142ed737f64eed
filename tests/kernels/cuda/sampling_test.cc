// Tokens chosen on the device against the sampler of the host, from the same logits.
#include "kernels/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "src/sampling/philox.h"
#include "src/sampling/sampler.h"
#include "tests/kernels/cuda/device_array.h"

namespace sluice::cuda {
namespace {
using sampling::SamplingParams;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row of logits and what is asked of it.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  std::vector<uint64_t> allowed;
  double random_number = -1;  // instead of the seed's

  sampling::History history() const { return {prompt, output, allowed}; }
};

const std::vector<int32_t> kEos{2};

// All rows in one launch, in an order of rows that is not that of the logits.
std::vector<SampledRow> sample_all(const std::vector<Case>& cases) {
  const size_t vocab = cases.front().logits.size();
  const size_t mask_words = (vocab + 63) / 64 * 2;
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  std::vector<LogitChange> changes;
  std::vector<uint32_t> masks;
  int32_t mask_count = 0;
  sampling::Workspace workspace;
  for (const Case& one : cases) {
    logits.insert(logits.end(), one.logits.begin(), one.logits.end());
    const sampling::Sampler sampler(one.params, kEos);
    SamplingRow row;
    row.row = static_cast<int32_t>(rows.size());
    row.temperature = one.params.temperature;
    row.top_k = one.params.top_k;
    row.top_p = one.params.top_p;
    row.min_p = one.params.min_p;
    row.alternatives = one.params.logprobs;
    row.first_change = static_cast<int32_t>(changes.size());
    for (const auto& change :
         sampler.changes(one.history(), static_cast<int64_t>(vocab), workspace))
      changes.push_back(
          {change.token, change.bias, change.repetition, change.penalty, change.is_banned, 0});
    row.changes = static_cast<int32_t>(changes.size()) - row.first_change;
    row.uniform = one.random_number >= 0 ? one.random_number
                                         : sampling::uniform(one.params.seed, one.output.size());
    if (!one.allowed.empty()) {
      for (size_t word = 0; word < mask_words; ++word)
        masks.push_back(word / 2 < one.allowed.size()
                            ? static_cast<uint32_t>(one.allowed[word / 2] >> (word % 2 * 32))
                            : 0);
      row.mask = mask_count++;
    }
    rows.push_back(row);
  }
  std::reverse(rows.begin(), rows.end());
  DeviceArray<float> device_logits(logits);
  DeviceArray<SamplingRow> device_rows(rows);
  DeviceArray<LogitChange> device_changes(changes);
  DeviceArray<uint32_t> device_masks(masks);
  DeviceArray<SampledRow> sampled(rows.size());
  sample(
      {device_logits.data(), static_cast<int32_t>(vocab), device_rows.data(), device_changes.data(),
       device_masks.data(), static_cast<int32_t>(mask_words), sampled.data()},
      static_cast<int64_t>(rows.size()), nullptr);
  auto out = sampled.values();
  std::reverse(out.begin(), out.end());
  // The rows are as they were: others may want them.
  const auto after = device_logits.values();
  for (size_t i = 0; i < logits.size(); ++i)
    EXPECT_TRUE(after[i] == logits[i] || (std::isnan(after[i]) && std::isnan(logits[i]))) << i;
  return out;
}

SampledRow sample_one(const Case& one) { return sample_all({one}).front(); }

// The drawn token's place in the kept tokens' probabilities is where the random number is, to
// within what the two ways of adding up differ by.
void expect_drawn(const SampledRow& row, const Case& one) {
  ASSERT_EQ(row.state, SampledState::kChosen);
  const auto probabilities = sampling::distribution(one.logits, one.params, one.history(), kEos);
  const double u = sampling::uniform(one.params.seed, one.output.size());
  double below = 0;
  for (int32_t token = 0; token < row.token; ++token)
    below += probabilities[static_cast<size_t>(token)];
  const double own = probabilities[static_cast<size_t>(row.token)];
  EXPECT_GT(own, 0) << "token " << row.token << " is not kept";
  EXPECT_LE(below, u + 1e-6) << "token " << row.token;
  EXPECT_GE(below + own, u - 1e-6) << "token " << row.token;
}

// What was reported beside the token, before any change.
void expect_logprobs(const SampledRow& row, const Case& one) {
  const sampling::Choice expected =
      sampling::score_token(one.logits, row.token, one.params.logprobs);
  const double normaliser = row.largest + std::log(static_cast<double>(row.sum) / kWeightScale);
  EXPECT_NEAR(row.logit - normaliser, expected.logprob, 2e-6);
  for (size_t i = 0; i < expected.top.size(); ++i) {
    EXPECT_EQ(row.tokens[i], expected.top[i].token) << i;
    if (std::isfinite(expected.top[i].logprob))
      EXPECT_NEAR(row.logits[i] - normaliser, expected.top[i].logprob, 2e-6) << i;
    else
      EXPECT_EQ(row.logits[i], -kInfinity);
  }
}

int between(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}
float uniform(std::mt19937& random, double low, double high) {
  return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
}

Case random_case(std::mt19937& random, size_t vocab) {
  Case one;
  const float spread = uniform(random, 0.1, 6);
  std::normal_distribution<float> normal(uniform(random, -20, 20), spread);
  for (size_t i = 0; i < vocab; ++i) one.logits.push_back(normal(random));
  const auto token = [&] { return between(random, 0, static_cast<int>(vocab) - 1); };
  // Some equal, some impossible.
  for (int i = between(random, 0, 6); i > 0; --i)
    one.logits[static_cast<size_t>(token())] = one.logits[static_cast<size_t>(token())];
  for (int i = between(random, 0, 3); i > 0; --i)
    one.logits[static_cast<size_t>(token())] = -kInfinity;
  one.logits[0] = one.logits[vocab - 1] = 0.5f;

  SamplingParams& params = one.params;
  const auto maybe = [&] { return between(random, 0, 1) == 0; };
  params.temperature = between(random, 0, 4) == 0 ? 0 : uniform(random, 0.05, 3);
  if (maybe()) params.top_k = between(random, 1, static_cast<int>(vocab) + 5);
  if (maybe()) params.top_p = uniform(random, 0, 1);
  if (maybe()) params.min_p = uniform(random, 0, 0.3);
  if (maybe()) params.repetition_penalty = uniform(random, 0.5, 2);
  if (maybe()) params.presence_penalty = uniform(random, -2, 2);
  if (maybe()) params.frequency_penalty = uniform(random, -2, 2);
  if (maybe()) params.min_tokens = params.max_tokens;
  for (int i = between(random, 0, 3); i > 0; --i)
    params.logit_bias.emplace_back(token(), uniform(random, -5, 5));
  params.logprobs = between(random, -1, 5);
  params.seed = random();
  for (int i = between(random, 1, 9); i > 0; --i) one.prompt.push_back(token());
  for (int i = between(random, 0, 9); i > 0; --i) one.output.push_back(token());
  if (between(random, 0, 3) == 0) {
    // Sometimes shorter than the row: what it doesn't reach may not come.
    one.allowed.resize((vocab + 63) / 64 - (vocab > 64 ? static_cast<size_t>(maybe()) : 0));
    for (uint64_t& word : one.allowed) word = (uint64_t{random()} << 32) | random();
    one.allowed[0] |= 0b1010;
  }
  return one;
}

TEST(CudaSampling, ChoosesAsTheHost) {
  // Of the largest the search looks at whole rows before it lists what is left.
  for (const size_t vocab : {5, 64, 257, 1000, 2053, 16001}) {
    std::mt19937 random(static_cast<uint32_t>(vocab));
    std::vector<Case> cases;
    for (int i = 0; i < (vocab < 1000 ? 40 : vocab < 10000 ? 16 : 6); ++i)
      cases.push_back(random_case(random, vocab));
    const auto rows = sample_all(cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", row " + std::to_string(i));
      expect_drawn(rows[i], cases[i]);
      if (cases[i].params.temperature == 0) {
        sampling::Workspace workspace;
        EXPECT_EQ(rows[i].token, sampling::Sampler(cases[i].params, kEos)
                                     .pick(cases[i].logits, cases[i].history(), workspace)
                                     .token);
      }
      if (cases[i].params.logprobs >= 0) expect_logprobs(rows[i], cases[i]);
    }
  }
}

// As often as its probability says: the same row with random numbers one as far as the other.
TEST(CudaSampling, DrawsEachTokenAsOftenAsItIsLikely) {
  std::mt19937 random(9);
  Case one = random_case(random, 33);
  one.params = {};
  one.params.temperature = 0.8f;
  one.params.top_p = 0.9f;
  one.allowed.clear();
  constexpr int kDraws = 128;
  std::vector<Case> cases;
  for (int i = 0; i < kDraws; ++i) {
    cases.push_back(one);
    cases.back().random_number = (i + 0.5) / kDraws;
  }
  std::vector<int> counts(one.logits.size());
  for (const SampledRow& row : sample_all(cases)) ++counts[static_cast<size_t>(row.token)];
  const auto expected = sampling::distribution(one.logits, one.params, one.history(), kEos);
  for (size_t i = 0; i < counts.size(); ++i)
    EXPECT_NEAR(counts[i], expected[i] * kDraws, 1.01) << i;
}

TEST(CudaSampling, OfEqualTokensTheLowestComeFirst) {
  Case one;
  one.logits.assign(777, 1.25f);
  one.params.top_p = 0.1f;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    one.params.seed = seed;
    const SampledRow row = sample_one(one);
    expect_drawn(row, one);
    EXPECT_LT(row.token, 78);
  }
  // Top-k keeps all that are as likely as the k-th.
  one.params.top_p = 1;
  one.params.top_k = 3;
  one.params.seed = 5;
  expect_drawn(sample_one(one), one);
  one.params.temperature = 0;
  EXPECT_EQ(sample_one(one).token, 0);
}

// What weighs as much as min-p asks for stays.
TEST(CudaSampling, TheLikeliestPassAnyMinP) {
  Case one;
  one.logits.assign(300, -2.0f);
  for (const size_t token : {20, 120, 220}) one.logits[token] = 1.5f;
  one.params.min_p = 1;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    one.params.seed = seed;
    const SampledRow row = sample_one(one);
    EXPECT_EQ(row.token % 100, 20);
    expect_drawn(row, one);
  }
}

TEST(CudaSampling, ExtremesKeepTheirOrder) {
  Case one;
  one.logits.assign(600, -std::numeric_limits<float>::max());
  one.logits[599] = std::numeric_limits<float>::max();
  one.logits[300] = std::numeric_limits<float>::denorm_min();
  one.logits[301] = -0.0f;
  one.params.logprobs = 3;
  for (const float temperature : {0.0f, 1e-30f, 1.0f, 100.0f}) {
    one.params.temperature = temperature;
    one.params.top_k = temperature == 100.0f ? 2 : 0;
    one.params.top_p = temperature == 100.0f ? 0.5f : 1;
    const SampledRow row = sample_one(one);
    ASSERT_EQ(row.state, SampledState::kChosen);
    EXPECT_EQ(row.token, 599);
    EXPECT_EQ(row.tokens[1], 300);
    EXPECT_EQ(row.tokens[2], 301);
  }
  // Values that differ in their last bit.
  one.logits.assign(600, 8.0f);
  for (const size_t token : {100, 200, 300}) one.logits[token] = std::nextafter(8.0f, 9.0f);
  one.params = {};
  one.params.top_k = 3;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    one.params.seed = seed;
    EXPECT_EQ(sample_one(one).token % 100, 0);
    expect_drawn(sample_one(one), one);
  }
}

TEST(CudaSampling, OneTokenAndOnesLeft) {
  Case one;
  one.logits = {3.0f};
  EXPECT_EQ(sample_one(one).token, 0);
  one.logits.assign(100, -kInfinity);
  one.logits[37] = -4;
  for (const float temperature : {0.0f, 2.0f}) {
    one.params.temperature = temperature;
    EXPECT_EQ(sample_one(one).token, 37);
  }
}

TEST(CudaSampling, SaysWhatGivesNoToken) {
  Case one;
  one.logits.assign(130, 1.0f);
  one.params.temperature = 1;
  const auto state = [&] { return sample_one(one).state; };
  EXPECT_EQ(state(), SampledState::kChosen);
  one.params.logit_bias = {{7, 1.0f}};
  for (const float bad : {kInfinity, std::nanf(""), -std::nanf("")}) {
    one.logits[77] = bad;
    EXPECT_EQ(state(), SampledState::kUnusable) << bad;
  }
  one.logits.assign(130, -kInfinity);
  EXPECT_EQ(state(), SampledState::kUnusable);
  one.logits.assign(130, 1.0f);
  one.allowed.assign(3, 0);
  EXPECT_EQ(state(), SampledState::kNothingLeft);
  one.allowed[2] = 0b10;  // token 129
  EXPECT_EQ(sample_one(one).token, 129);
  one.params.min_tokens = 5;
  one.params.stop_token_ids = {129};
  EXPECT_EQ(state(), SampledState::kNothingLeft);
  one.allowed.clear();
  one.logits[3] = std::numeric_limits<float>::max();
  one.prompt = {3};
  one.params.repetition_penalty = 0.1f;
  EXPECT_EQ(state(), SampledState::kUnusable) << "a penalty that gives +inf";
}

}  // namespace
}  // namespace sluice::cuda
