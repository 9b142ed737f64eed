#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/sampling/sampler.h"

// Against what transformers' processors give (tests/fixtures/sampling, made by
// scripts/golden/sampling.py).
namespace sluice::sampling {
namespace {

using nlohmann::json;

SamplingParams params_of(const json& settings) {
  SamplingParams params;
  for (const auto& [name, value] : settings.items()) {
    if (name == "temperature")
      params.temperature = value;
    else if (name == "top_k")
      params.top_k = value;
    else if (name == "top_p")
      params.top_p = value;
    else if (name == "min_p")
      params.min_p = value;
    else if (name == "repetition_penalty")
      params.repetition_penalty = value;
    else if (name == "presence_penalty")
      params.presence_penalty = value;
    else if (name == "frequency_penalty")
      params.frequency_penalty = value;
    else
      ADD_FAILURE() << "unknown setting " << name;
  }
  return params;
}

class SamplerGolden : public testing::TestWithParam<const char*> {};

TEST_P(SamplerGolden, KeepsTheSameTokensWithTheSameProbabilities) {
  std::ifstream file(std::string(SLUICE_FIXTURES "/sampling/") + GetParam() + ".json");
  ASSERT_TRUE(file) << GetParam();
  const json golden = json::parse(file);
  std::vector<float> logits;
  float largest = 0;
  for (const json& logit : golden.at("logits")) {
    logits.push_back(logit.is_null() ? -std::numeric_limits<float>::infinity()
                                     : logit.get<float>());
    if (!logit.is_null()) largest = std::max(largest, std::abs(logits.back()));
  }
  const auto history = golden.at("history").get<std::vector<int32_t>>();
  ASSERT_GT(golden.at("cases").size(), 10U);

  for (const json& one : golden.at("cases")) {
    const SamplingParams params = params_of(one.at("settings"));
    const auto found = distribution(logits, params, {{}, history});
    const auto& kept = one.at("kept");
    size_t next = 0;
    // Both sides round the exponent (its size times 2^-24, a few roundings) before taking exp.
    const double exponent = largest / (params.temperature > 0 ? params.temperature : 1.0F);
    const double tolerance = 2e-6 + 8 * exponent * 0x1p-24;
    for (size_t token = 0; token < found.size(); ++token) {
      const bool is_kept = next < kept.size() && kept[next].get<size_t>() == token;
      ASSERT_EQ(found[token] > 0, is_kept) << one.at("settings") << " token " << token;
      if (!is_kept) continue;
      const double expected = one.at("probs")[next++];
      EXPECT_NEAR(found[token] / expected, 1.0, tolerance)
          << one.at("settings") << " token " << token;
    }
    EXPECT_EQ(next, kept.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, SamplerGolden,
                         testing::Values("normal_50", "large_offset_50", "ties_50", "masked_50",
                                         "gumbel_1000"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sluice::sampling
