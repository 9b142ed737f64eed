// Layers that keep a recurrent state take the same room however long a sequence is, and give the
// same tokens whatever the cuts, wherever a state lies, and when a known beginning's is taken up.
#include <gtest/gtest.h>

#include "tests/engine/stores/page_runs.h"

namespace sluice::testing {
namespace {

constexpr const char* kModels[] = {"qwen3-5-tiny", "qwen3-5-odd", "mamba2-tiny", "mamba2-odd",
                                   "granitemoehybrid-odd"};

// Two pages a sequence and one for a known beginning, each as large as the state, of any length.
TEST(RecurrentState, TakesTheSameRoomForAnyLength) {
  for (const int64_t length : {20, 200}) {
    const auto requests = greedy_requests({short_prompt(length, 1), short_prompt(9, 2)}, 10);
    EngineOptions options = plain(requests, 4, 16);
    options.policy->micro_batch_sequences = 2;
    const Ran ran = run("qwen3-5-tiny", options, requests);
    ASSERT_EQ(ran.plan.kv.size(), 2u);
    const policy::KvPlan& state = ran.plan.kv[0];
    ASSERT_TRUE(state.state.is_recurrent());
    EXPECT_EQ(state.num_layers, 3);
    EXPECT_EQ(state.memory_pages, 2 * 3);
    // 4 heads of 8 x 8, and 3 inputs of 2 x 16 + 32 columns.
    EXPECT_EQ(state.page_bytes, 4 * (4 * 8 * 8 + 3 * 64));
    EXPECT_FALSE(ran.plan.kv[1].state.is_recurrent());
    EXPECT_LE(ran.most_used, ran.pages);
  }
}

TEST(RecurrentState, ChunksAndPagesDoNotMatter) {
  for (const char* model : kModels) {
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 5; ++i) prompts.push_back(short_prompt(1 + 29 * i, 10 + i));
    expect_same_tokens_however_cut(model, greedy_requests(prompts, 30), 24);
  }
}

// A prompt's state is known at the last border of a page in it, and of an answer at the last one
// written: whoever goes on from there computes the rest and gets the tokens that it gets anew.
TEST(RecurrentState, KnownBeginningsAreTakenUpExactly) {
  for (const char* model : kModels) {
    constexpr int64_t kPage = 8;
    const std::vector<int32_t> first = short_prompt(45, 3);
    auto requests = greedy_requests({first}, 61);
    requests.front().params.ignore_eos = true;
    EngineOptions options = plain(requests, kPage, 16);
    options.context_tokens = 200;
    const auto alone = in_turn(model, options, requests).tokens.at(0);
    std::vector<int32_t> longer = first;  // the answer, and a question after it
    longer.insert(longer.end(), alone.begin(), alone.end());
    const std::vector<int32_t> question = short_prompt(13, 4);
    longer.insert(longer.end(), question.begin(), question.end());
    std::vector<int32_t> behind = first;  // differs behind the last border
    behind[41] = behind[41] == 3 ? 4 : 3;
    std::vector<int32_t> within = first;  // ends where nothing is known
    within.resize(30);
    requests = greedy_requests({first, first, longer, behind, within}, 61);
    for (GenerationRequest& request : requests) request.params.ignore_eos = true;
    options = plain(requests, kPage, 16);
    options.context_tokens = 200;
    options.cache_prefixes = false;
    const AdmittedSink expected = in_turn(model, options, requests);
    options.cache_prefixes = true;
    // Three pages: two to write to, and one that the prompt's last border keeps all along.
    const AdmittedSink small = in_turn(model, options, {requests[0], requests[1]});
    EXPECT_EQ(small.cached.at(1), 40) << "45 tokens are five pages and some";
    EXPECT_EQ(small.tokens.at(1), expected.tokens.at(1));
    options.workload.sequences = 4;
    options.policy->micro_batch_sequences = 4;
    const AdmittedSink actual = in_turn(model, options, requests);
    EXPECT_EQ(actual.tokens, expected.tokens) << model;
    EXPECT_EQ(actual.cached.at(0), 0);
    EXPECT_EQ(actual.cached.at(1), 40);
    EXPECT_EQ(actual.cached.at(2), 104) << "of the 105 tokens computed";
    EXPECT_EQ(actual.cached.at(3), 40);
    EXPECT_EQ(actual.cached.at(4), 0) << "inside of a prompt nothing is kept";
  }
}

// With attention on the host a state still comes up to be computed on, and what a gate of the
// attended values was before is there after.
TEST(RecurrentState, GoesUpAndDownBesideAttentionOnTheHost) {
  for (const char* model : kModels) {
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 6; ++i) prompts.push_back(short_prompt(2 + 13 * i, 20 + i));
    const auto requests = greedy_requests(prompts, 20);
    const Ran whole = run(model, plain(requests, 160, 256), requests);
    for (uint32_t seed = 1; seed <= 16; ++seed) {
      const EngineOptions options = attended_on_host(requests, seed);
      const Ran actual = run(model, options, requests);
      EXPECT_EQ(actual.tokens, whole.tokens)
          << model << " " << seed << " " << policy::policy_to_json(*options.policy);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
