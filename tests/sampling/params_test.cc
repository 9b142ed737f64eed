#include "src/sampling/params.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "src/base/error.h"
#include "tests/sampling/extremes.h"

namespace sluice::sampling {
namespace {

using Change = std::function<void(SamplingParams&)>;

std::string refusal(const Change& change) {
  SamplingParams params;
  change(params);
  try {
    validate(params);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.what();
  }
  return "accepted";
}

TEST(SamplingParams, DefaultsAndLimitsAreValid) {
  SamplingParams params;
  EXPECT_NO_THROW(validate(params));
  params.temperature = 0;
  params.top_p = 0;
  params.min_p = 1;
  params.repetition_penalty = 100;
  params.presence_penalty = -2;
  params.frequency_penalty = 2;
  params.min_tokens = params.max_tokens;
  params.logprobs = kMaxLogprobs;
  params.stop = {"a", std::string(kMaxStopBytes, 'b')};
  params.stop_token_ids = {0};
  params.logit_bias = {{0, -100.0F}, {1, 100.0F}};
  EXPECT_NO_THROW(validate(params));
}

TEST(SamplingParams, RefusalNamesFieldValueAndRange) {
  const std::string text = refusal([](SamplingParams& p) { p.top_p = 1.5F; });
  EXPECT_NE(text.find("top_p"), std::string::npos);
  EXPECT_NE(text.find("1.5"), std::string::npos);
  EXPECT_NE(text.find("0 to 1"), std::string::npos);
}

TEST(SamplingParams, EveryFieldOutOfRangeIsRefusedByName) {
  const std::vector<std::pair<const char*, Change>> cases = {
      {"temperature", [](auto& p) { p.temperature = -0.1F; }},
      {"temperature", [](auto& p) { p.temperature = kNan; }},
      {"temperature", [](auto& p) { p.temperature = kInf; }},
      {"top_k", [](auto& p) { p.top_k = -1; }},
      {"top_p", [](auto& p) { p.top_p = -0.1F; }},
      {"top_p", [](auto& p) { p.top_p = kNan; }},
      {"min_p", [](auto& p) { p.min_p = 1.01F; }},
      {"typical_p", [](auto& p) { p.typical_p = 1.01F; }},
      {"top_n_sigma", [](auto& p) { p.top_n_sigma = -0.5F; }},
      {"top_n_sigma", [](auto& p) { p.top_n_sigma = kNan; }},
      {"xtc_probability", [](auto& p) { p.xtc_probability = 2; }},
      {"xtc_threshold", [](auto& p) { p.xtc_threshold = -1; }},
      {"mirostat", [](auto& p) { p.mirostat = 3; }},
      {"mirostat", [](auto& p) { p.mirostat = -1; }},
      {"mirostat_tau", [](auto& p) { p.mirostat_tau = kInf; }},
      {"mirostat_eta", [](auto& p) { p.mirostat_eta = kNan; }},
      {"mirostat", [](auto& p) { p.mirostat = p.num_beams = 2; }},
      {"dry_multiplier", [](auto& p) { p.dry_multiplier = 101; }},
      {"dry_base", [](auto& p) { p.dry_base = 0.5F; }},
      {"dry_allowed_length", [](auto& p) { p.dry_allowed_length = -1; }},
      {"dry_penalty_last_n", [](auto& p) { p.dry_penalty_last_n = -2; }},
      {"dry_sequence_breakers", [](auto& p) { p.dry_sequence_breakers = {""}; }},
      {"dry_sequence_breakers", [](auto& p) { p.dry_sequence_breakers.assign(65, "x"); }},
      {"dry_sequence_breakers", [](auto& p) { p.dry_breaker_tokens = {{}}; }},
      {"dry_sequence_breakers", [](auto& p) { p.dry_breaker_tokens = {{-1}}; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = kInf; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 2.1F; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = -2.1F; }},
      {"max_tokens", [](auto& p) { p.max_tokens = 0; }},
      {"min_tokens", [](auto& p) { p.min_tokens = -1; }},
      {"min_tokens", [](auto& p) { p.min_tokens = p.max_tokens + 1; }},
      {"logprobs", [](auto& p) { p.logprobs = -2; }},
      {"logprobs", [](auto& p) { p.logprobs = kMaxLogprobs + 1; }},
      {"stop[1]",
       [](auto& p) {
         p.stop = {"a", ""};
       }},
      {"stop[0]", [](auto& p) { p.stop = {std::string(kMaxStopBytes + 1, 'x')}; }},
      {"stop strings", [](auto& p) { p.stop.assign(kMaxStopStrings + 1, "x"); }},
      {"stop_token_ids",
       [](auto& p) {
         p.stop_token_ids = {3, -1};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{-1, 0.0F}};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{1, 101.0F}};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{1, kNan}};
       }},
  };
  for (const auto& [field, change] : cases) {
    EXPECT_NE(refusal(change).find(field), std::string::npos) << field << ": " << refusal(change);
  }
}

TEST(SamplingParams, DerivedSeedsDependOnBothArguments) {
  std::set<uint64_t> seeds;
  for (uint64_t job = 0; job < 50; ++job) {
    for (uint64_t sequence = 0; sequence < 50; ++sequence) seeds.insert(derive_seed(job, sequence));
  }
  EXPECT_EQ(seeds.size(), 2500U);
  EXPECT_EQ(derive_seed(7, 9), derive_seed(7, 9));
}

}  // namespace
}  // namespace sluice::sampling
