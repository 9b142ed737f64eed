// Rows behind the final norm, as embeddings are made of them: against transformers
// (scripts/golden/embeddings.py), under policies, beside sequences that generate, behind a prefix
// cache.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

GenerationRequest hidden_request(uint64_t id, std::vector<int32_t> prompt, HiddenRows rows) {
  GenerationRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.hidden_rows = rows;
  return request;
}

EngineOptions rows_options(const std::vector<GenerationRequest>& requests) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF32;
  return options;
}

double rows_difference(std::span<const float> ours, std::span<const float> reference) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    worst = std::max(worst, std::abs(double{ours[i]} - reference[i]));
    largest = std::max(largest, std::abs(double{reference[i]}));
  }
  return worst / largest;
}

TEST(HiddenRows, LastAndMeanEqualTransformers) {
  std::ifstream file(fixture_model("../embeddings.json"));
  const auto goldens = nlohmann::json::parse(file);
  int compared = 0;
  for (const char* model : {"qwen3-tiny", "gemma3-tiny", "cohere-tiny", "gpt2-tiny"}) {
    const auto cases = golden_cases(model);
    std::vector<GenerationRequest> requests;
    for (const GoldenCase& golden : cases)
      for (const HiddenRows rows : {HiddenRows::kLast, HiddenRows::kAll})
        requests.push_back(hidden_request(requests.size(), golden.prompt, rows));
    auto answers = run_all(model, rows_options(requests), requests);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(std::string(model) + ", " + cases[i].name);
      const auto& golden = goldens.at(model).at(cases[i].name);
      const auto last = golden.at("last").get<std::vector<float>>();
      const std::vector<float>& all = answers[2 * i + 1].hidden;
      ASSERT_EQ(answers[2 * i].hidden.size(), last.size());
      ASSERT_EQ(all.size(), last.size() * cases[i].prompt.size());
      EXPECT_LE(rows_difference(answers[2 * i].hidden, last), 1e-4);
      EXPECT_LE(rows_difference(std::span(all).last(last.size()), last), 1e-4);
      std::vector<float> mean;
      for (size_t col = 0; col < last.size(); ++col) {
        double sum = 0;
        for (size_t at = col; at < all.size(); at += last.size()) sum += all[at];
        mean.push_back(static_cast<float>(sum / static_cast<double>(cases[i].prompt.size())));
      }
      EXPECT_LE(rows_difference(mean, golden.at("mean").get<std::vector<float>>()), 1e-4);
      EXPECT_EQ(answers[2 * i].finish, FinishReason::kScored);
      EXPECT_TRUE(answers[2 * i].tokens.empty());
      ++compared;
    }
  }
  EXPECT_GE(compared, 10);
}

std::vector<policy::Policy> rows_policies() {
  std::vector<policy::Policy> out(4);
  out[1].weights = {0, 0, 1};
  out[1].kv = {0, 0, 1};
  out[1].pass_tokens = 20;
  out[2].micro_batch_sequences = 1;
  out[2].micro_batches = 3;
  out[2].weights = {0.5, 0, 0.5};
  out[2].pass_tokens = 7;
  out[3].weights = {0.3, 0.3, 0.4};
  out[3].kv = {0.3, 0.3, 0.4};
  out[3].activations = {0, 0.5, 0.5};
  return out;
}

// Some want rows, some logits, some tokens, all in one block.
TEST(HiddenRows, AreTheSameBesideOthersWhereverWeightsAndKvLie) {
  Random random(3);
  const auto prompts = random_prompts(random, 7, 101);
  std::vector<GenerationRequest> requests = greedy_requests(prompts, 6);
  for (const size_t i : {0, 1, 4}) requests[i].hidden_rows = HiddenRows::kAll;
  for (const size_t i : {2, 5}) requests[i].hidden_rows = HiddenRows::kLast;
  requests[6].score_prompt = true;
  std::map<uint64_t, Answer> alone;
  for (const GenerationRequest& request : requests)
    alone.merge(run_all("qwen3-tiny", rows_options({request}), {request}));
  size_t which = 0;
  for (const policy::Policy& policy : rows_policies()) {
    SCOPED_TRACE("policy " + std::to_string(which));
    EngineOptions options = rows_options(requests);
    options.policy = policy;
    if (options.policy->micro_batch_sequences < 2) options.policy->micro_batch_sequences = 3;
    if (which++ == 3) options.device = EmulatedSpec{int64_t{64} << 20, 0, 0, 0, 0};
    auto answers = run_all("qwen3-tiny", options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_EQ(answers[i].tokens, alone[i].tokens);
      EXPECT_EQ(answers[i].finish, alone[i].finish);
      ASSERT_EQ(answers[i].hidden.size(), alone[i].hidden.size());
      ASSERT_EQ(answers[i].logits.size(), alone[i].logits.size());
      if (!alone[i].hidden.empty())
        EXPECT_LE(rows_difference(answers[i].hidden, alone[i].hidden), 1e-5);
    }
    EXPECT_EQ(answers[0].hidden.size(), prompts[0].size() * 32);
    EXPECT_EQ(answers[2].hidden.size(), 32u);
    EXPECT_TRUE(answers[0].logits.empty());
  }
}

TEST(HiddenRows, OfAKnownBeginningAreAllComputed) {
  Random random(9);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<int32_t>(pick(random, 6, 100)));
  std::vector<GenerationRequest> requests{hidden_request(0, prompt, HiddenRows::kAll),
                                          hidden_request(1, prompt, HiddenRows::kLast),
                                          hidden_request(2, prompt, HiddenRows::kAll)};
  EngineOptions options = rows_options(requests);
  options.cache_prefixes = true;
  options.workload.sequences = 1;  // one after the other
  auto answers = run_all("qwen3-tiny", options, requests);
  ASSERT_EQ(answers[0].hidden.size(), 40u * 32);
  ASSERT_EQ(answers[2].hidden.size(), 40u * 32);
  EXPECT_LE(rows_difference(answers[2].hidden, answers[0].hidden), 1e-6);
  ASSERT_EQ(answers[1].hidden.size(), 32u);
  EXPECT_LE(rows_difference(answers[1].hidden, std::span(answers[0].hidden).last(32)), 1e-5);
}

TEST(HiddenRows, OfBeamsAndOfNothingAreRefused) {
  auto beams = hidden_request(0, {7, 8, 9}, HiddenRows::kLast);
  beams.params.num_beams = 2;
  const std::vector<GenerationRequest> requests{beams, hidden_request(1, {}, HiddenRows::kAll),
                                                hidden_request(2, {7}, HiddenRows::kAll)};
  auto answers = run_all("qwen3-tiny", rows_options(requests), requests);
  EXPECT_NE(answers[0].refused.find("beam"), std::string::npos);
  EXPECT_NE(answers[1].refused.find("empty"), std::string::npos);
  EXPECT_EQ(answers[2].hidden.size(), 32u);
}

}  // namespace
}  // namespace sluice::testing
