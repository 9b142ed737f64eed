// Beam search through the engine finds what Hugging Face's generate() finds (goldens of
// scripts/golden/beams.py), wherever KV pages live.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

using nlohmann::json;

struct Golden {
  GenerationRequest request;
  std::vector<std::vector<int32_t>> sequences;
  std::vector<double> scores;
};

std::vector<Golden> goldens(const std::string& model) {
  std::ifstream file(fixture_model(model) + "/beams.json");
  std::vector<Golden> out;
  const json parsed = json::parse(file);
  for (const json& one : parsed.at("cases")) {
    Golden& golden = out.emplace_back();
    golden.request.id = out.size() - 1;
    golden.request.prompt = one["prompt"].get<std::vector<int32_t>>();
    sampling::SamplingParams& params = golden.request.params;
    params.num_beams = one["num_beams"];
    params.max_tokens = one["max_tokens"];
    params.min_tokens = std::min(one["min_tokens"].get<int>(), params.max_tokens);
    params.length_penalty = one["length_penalty"];
    params.repetition_penalty = one["repetition_penalty"];
    params.stop_token_ids = one["end_tokens"].get<std::vector<int32_t>>();
    params.ignore_eos = true;
    params.early_stopping = one["early_stopping"] == "never" ? sampling::EarlyStopping::kNever
                            : one["early_stopping"] == true  ? sampling::EarlyStopping::kAtOnce
                                                             : sampling::EarlyStopping::kHeuristic;
    golden.sequences = one["sequences"].get<std::vector<std::vector<int32_t>>>();
    golden.scores = one["scores"].get<std::vector<double>>();
  }
  return out;
}

void expect_goldens(const std::string& model, const EngineOptions& options,
                    const std::vector<Golden>& all) {
  std::vector<GenerationRequest> requests;
  for (const Golden& golden : all) requests.push_back(golden.request);
  const auto answers = run_all(model, options, requests);
  for (const Golden& golden : all) {
    SCOPED_TRACE("case " + std::to_string(golden.request.id));
    const auto& found = answers.at(golden.request.id).hypotheses;
    ASSERT_EQ(found.size(), golden.sequences.size());
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<int32_t> tokens;
      double sum = 0;
      for (const sampling::Choice& choice : found[i].choices) {
        tokens.push_back(choice.token);
        sum += choice.logprob;
      }
      EXPECT_EQ(tokens, golden.sequences[i]) << "sequence " << i;
      // Without a penalty for length a score may be a sum of hundreds.
      EXPECT_NEAR(found[i].score, golden.scores[i], 2e-4 + 1e-6 * std::abs(golden.scores[i]))
          << "sequence " << i;
      if (golden.request.params.repetition_penalty == 1 &&
          golden.request.params.length_penalty == 0) {
        EXPECT_NEAR(found[i].score, sum, 1e-4);
      }
    }
  }
}

class BeamGoldens : public ::testing::TestWithParam<std::string> {};

TEST_P(BeamGoldens, AreFoundWithAllInMemory) {
  const auto all = goldens(GetParam());
  ASSERT_EQ(all.size(), 24u);
  std::vector<GenerationRequest> requests;
  for (const Golden& golden : all) requests.push_back(golden.request);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = KvFormat(DType::kF32);
  expect_goldens(GetParam(), options, all);
}

TEST_P(BeamGoldens, AreFoundWithPagesOnEveryTier) {
  const auto all = goldens(GetParam());
  std::vector<GenerationRequest> requests;
  for (const Golden& golden : all) requests.push_back(golden.request);
  for (int which = 0; which < 4; ++which) {
    SCOPED_TRACE(which);
    EngineOptions options = options_for(requests);
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = KvFormat(DType::kF32);
    options.policy = policy::Policy{};
    options.policy->page_tokens = 3 + 2 * which;
    options.policy->micro_batch_sequences = 4;
    options.policy->micro_batches = 3;
    options.policy->kv =
        which == 1 ? policy::TierShares{0.4, 0.3, 0.3} : policy::TierShares{0.5, 0, 0.5};
    options.cache_prefixes = which % 2 == 0;
    if (which == 1 || which == 3) {
      options.device = EmulatedSpec{int64_t{64} << 20, 0, 0, 0, 0};
      options.policy->attention =
          which == 1 ? policy::AttentionPlace::kDevice : policy::AttentionPlace::kHost;
    }
    expect_goldens(GetParam(), options, all);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BeamGoldens,
                         ::testing::Values("llama-tiny-gqa", "opt-tiny", "qwen3-5-tiny",
                                           "youtu-tiny"),
                         [](const auto& info) { return test_name(info.param); });

TEST(BeamRequests, ThatCanNotRunAreRefusedByName) {
  auto requests = greedy_requests({{5, 6, 7}, {8, 9}, {4, 4, 4}}, 4);
  EngineOptions options = options_for(requests);
  options.policy = policy::Policy{};
  options.policy->micro_batch_sequences = 3;
  requests[0].params.num_beams = 4;  // more than run together
  requests[1].params.num_beams = 2;
  requests[1].score_prompt = true;
  requests[2].params.num_beams = 2;
  requests[2].params.logit_bias = {};
  const auto answers = run_all("llama-tiny-gqa", options, requests);
  EXPECT_NE(answers.at(0).refused.find("4 beams"), std::string::npos) << answers.at(0).refused;
  EXPECT_NE(answers.at(1).refused.find("score"), std::string::npos) << answers.at(1).refused;
  EXPECT_EQ(answers.at(2).hypotheses.size(), 2u);
}

}  // namespace
}  // namespace sluice::testing
