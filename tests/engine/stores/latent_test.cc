// Layers that keep a latent row a token: how much room it takes, and the same tokens whatever the
// cuts, wherever rows lie, and when a known beginning's are taken up.
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "tests/engine/stores/page_runs.h"

namespace sluice::testing {
namespace {

constexpr const char* kLatentModels[] = {"youtu-tiny", "minicpm3-odd", "deepseek-v2-tiny",
                                         "deepseek-v3-odd"};

// 16 columns and 4 turned ones, two layers: neither heads nor keys and values apart.
TEST(LatentRows, TakeARowATokenAndLayer) {
  const auto requests = greedy_requests({short_prompt(41, 1), short_prompt(9, 2)}, 10);
  EngineOptions options = plain(requests, 4, 16);
  options.policy->micro_batch_sequences = 2;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    options.kv_dtype = KvFormat(type);
    const Ran ran = run("youtu-tiny", options, requests);
    ASSERT_EQ(ran.plan.kv.size(), 1u);
    const policy::KvPlan& kv = ran.plan.kv[0];
    EXPECT_EQ(kv.state, latent_state(4, 16));
    EXPECT_EQ(kv.page_bytes, 4 * (16 + 4) * dtype_bytes(type));
    // 41 + 10 tokens are 13 pages, and two sequences may be as long as the longest.
    EXPECT_LE(kv.memory_pages, 2 * 13);
    EXPECT_EQ(ran.plan.kv_memory_bytes(), kv.memory_pages * 2 * kv.page_bytes);
    EXPECT_GE(ran.most_used, 13 + 3) << "39 + 10 and 9 + 10 tokens, a page of 4 each";
  }
}

TEST(LatentRows, ChunksAndPagesDoNotMatter) {
  for (const char* model : kLatentModels) {
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 5; ++i) prompts.push_back(short_prompt(1 + 29 * i, 10 + i));
    expect_same_tokens_however_cut(model, greedy_requests(prompts, 30), 12);
  }
}

TEST(LatentRows, KnownBeginningsAreTakenUp) {
  for (const char* model : kLatentModels) {
    const auto cached = known_beginnings(model);
    EXPECT_EQ(cached.at(1), 40) << "45 tokens are five pages and some";
    EXPECT_EQ(cached.at(2), 24);
  }
}

TEST(LatentRows, AttendOnTheHostToo) {
  for (const char* model : kLatentModels) {
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 6; ++i) prompts.push_back(short_prompt(2 + 13 * i, 20 + i));
    const auto requests = greedy_requests(prompts, 20);
    const Ran whole = run(model, plain(requests, 160, 256), requests);
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      EngineOptions options = attended_on_host(requests, seed);
      options.policy->weights = {0.3, 0.4, 0.3};
      options.policy->inplace_host_fraction = seed % 2 == 0 ? 0.4 : 0;
      EXPECT_EQ(run(model, options, requests).tokens, whole.tokens)
          << model << " " << seed << " " << policy::policy_to_json(*options.policy);
    }
  }
}

TEST(LatentRows, AreNotQuantisedAndSaySo) {
  for (const KvFormat& format : kQuantisedKv) {
    const auto requests = greedy_requests({{5, 6, 7}}, 4);
    EngineOptions options = options_for(requests);
    options.kv_dtype = format;
    try {
      Engine::open(fixture_model("youtu-tiny"), options);
      FAIL() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find("latent rows"), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("kv_dtype"), std::string::npos) << error.text();
    }
  }
}

}  // namespace
}  // namespace sluice::testing
