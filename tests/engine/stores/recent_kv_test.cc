// Newest tokens in 16 bits beside quantised KV: all of them is 16-bit KV, more of them is closer to
// it, and where chunks and pages end does not matter.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

std::vector<int32_t> drawn_prompt(size_t length, unsigned ids = 200) {
  std::mt19937 random(17);
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(3 + random() % ids);
  return prompt;
}

std::vector<GenerationRequest> scored(const std::vector<std::vector<int32_t>>& prompts) {
  auto requests = greedy_requests(prompts, 1);
  for (GenerationRequest& request : requests) request.score_prompt = true;
  return requests;
}

std::vector<float> logits_with(const std::string& model, KvFormat kv, int64_t recent,
                               const std::function<void(EngineOptions&)>& change = {}) {
  const unsigned ids = model == "bloom-tiny" || model == "gpt-oss-tiny" ? 50 : 200;
  const auto requests = scored({drawn_prompt(150, ids), drawn_prompt(40, ids)});
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = kv;
  options.kv_recent_tokens = recent;
  if (change) change(options);
  auto answers = run_all(model, options, requests);
  std::vector<float> all = answers[0].logits;
  all.insert(all.end(), answers[1].logits.begin(), answers[1].logits.end());
  return all;
}

double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} - double{b[i]});
  return sum / static_cast<double>(a.size());
}

const KvFormat kInt4(KvEncoding::kInt4);

TEST(RecentKv, AllTokensRecentIsKvOf16Bits) {
  for (const char* model : {"stories260k", "opt-tiny"}) {
    const auto plain = logits_with(model, DType::kF16, 0);
    const auto recent = logits_with(model, kInt4, 150);
    EXPECT_LT(mean_difference(plain, recent), 1e-6) << model;
  }
}

TEST(RecentKv, MoreRecentTokensAreCloserToKvOf16Bits) {
  for (const char* model : {"stories260k", "bloom-tiny"}) {
    const auto plain = logits_with(model, DType::kF16, 0);
    double before = 1e9;
    for (const int64_t recent : {0, 4, 32, 100}) {
      const double error = mean_difference(plain, logits_with(model, kInt4, recent));
      EXPECT_LT(error, before) << model << " " << recent;
      before = error;
    }
    EXPECT_GT(before, 1e-5) << model << ": the oldest tokens are still of 4 bits";
  }
}

// Attention of two parts has one sink: counted in both it would move every weight.
TEST(RecentKv, SinksCountOnce) {
  const auto plain = logits_with("gpt-oss-tiny", DType::kF16, 0);
  const KvFormat int8(KvEncoding::kInt8);
  const double of_codes = mean_difference(plain, logits_with("gpt-oss-tiny", int8, 0));
  for (const int64_t recent : {1, 20, 100}) {
    const double error = mean_difference(plain, logits_with("gpt-oss-tiny", int8, recent));
    EXPECT_LT(error, 1.5 * of_codes) << recent;
  }
}

TEST(RecentKv, ChunksAndPagesDoNotMatter) {
  const auto whole = logits_with("stories260k", kInt4, 23);
  for (const auto& [tokens, page] :
       {std::pair{1, 16}, std::pair{7, 1}, std::pair{64, 5}, std::pair{33, 64}}) {
    const auto chunked = logits_with("stories260k", kInt4, 23, [&](EngineOptions& options) {
      options.policy.emplace();
      options.policy->micro_batch_tokens = tokens;
      options.policy->page_tokens = page;
      options.policy->kv = {0.5, 0, 0.5};
      options.policy->micro_batch_sequences = 2;
    });
    // A sum in another order may round a code of KV the other way.
    EXPECT_LT(mean_difference(whole, chunked), 2e-2) << tokens << " " << page;
  }
  // The unit of the bound: without the recent tokens the difference is this much.
  EXPECT_GT(mean_difference(whole, logits_with("stories260k", kInt4, 0)), 2e-2);
}

TEST(RecentKv, SequencesWaitForASlot) {
  // Room for two sequences at a time, five to run: each gets the tokens it gets alone.
  std::vector<std::vector<int32_t>> prompts;
  for (const size_t length : {30, 12, 45, 7, 20}) prompts.push_back(drawn_prompt(length));
  const auto requests = greedy_requests(prompts, 9);
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = KvFormat(KvEncoding::kInt8);
  options.kv_recent_tokens = 10;
  options.policy.emplace();
  options.policy->micro_batch_sequences = 2;
  auto together = run_all("stories260k", options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto alone = run_all("stories260k", options, {requests[i]});
    EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
  }
}

std::string refusal(const std::function<void(EngineOptions&)>& change) {
  try {
    logits_with("stories260k", kInt4, 8, change);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.what();
  }
  return "";
}

TEST(RecentKv, WhereItHasNoEffectItIsRefused) {
  EXPECT_NE(refusal([](EngineOptions& options) { options.kv_dtype = DType::kF16; }).find("f16 KV"),
            std::string::npos);
  EXPECT_NE(refusal([](EngineOptions& options) {
              options.attention_sparsity = 0.5f;
            }).find("`attention_sparsity`"),
            std::string::npos);
  EXPECT_NE(refusal([](EngineOptions& options) {
              options.device = EmulatedSpec{int64_t{64} << 20, 0, 0, 0, 0};
            }).find("CPU"),
            std::string::npos);
  EXPECT_NE(refusal([](EngineOptions& options) { options.kv_recent_tokens = -1; }).find("negative"),
            std::string::npos);
}

TEST(RecentKv, ItsBytesAreInThePlan) {
  const auto requests = greedy_requests({drawn_prompt(60), drawn_prompt(60)}, 10);
  EngineOptions options = options_for(requests);
  options.kv_dtype = kInt4;
  const auto without = Engine::open(fixture_model("stories260k"), options);
  options.kv_recent_tokens = 16;
  const auto with = Engine::open(fixture_model("stories260k"), options);
  const policy::RecentPlan& recent = with->plan().recent;
  EXPECT_EQ(recent.tokens, 16);
  EXPECT_EQ(recent.slots, 2);
  EXPECT_GE(with->plan().recent_bytes(), with->model().shape().num_layers * 2 * 16 * 2 * 32);
  EXPECT_LT(with->plan().recent_bytes(), with->plan().memory_bytes());
  EXPECT_EQ(without->plan().recent_bytes(), 0);
}

}  // namespace
}  // namespace sluice::testing
