// Layers that see a window have pages for the window alone: the plan says how many, runs keep to
// it, and no token changes.
#include <gtest/gtest.h>

#include "tests/engine/stores/page_runs.h"

namespace sluice::testing {
namespace {

// A window of 16, pages of 4, at most 8 tokens of the prompt together: token 8 of them sees 15
// before the first, so 22 positions behind each other lie in at most 1 + ceil(22 / 4) pages.
TEST(Windows, ASequenceHasThePagesOfItsWindowAndAChunk) {
  const auto requests = greedy_requests({prompt_of(120, 1)}, 100);
  const Ran small = run("mistral-tiny", plain(requests, 4, 8), requests);
  EXPECT_EQ(small.plan.kv.front().ring_pages, 7);
  EXPECT_EQ(small.plan.kv.front().memory_pages, 7);
  EXPECT_LE(small.most_used, 7);
  EXPECT_EQ(small.pages, 7);
  // One page for all 220 tokens: nothing is ever given back.
  const Ran whole = run("mistral-tiny", plain(requests, 220, 256), requests);
  EXPECT_EQ(whole.pages, 1);
  EXPECT_EQ(small.tokens, whole.tokens);
}

// Layers with and without a window: two groups, and only the first gives pages back.
TEST(Windows, LayersThatSeeEverythingKeepAllPages) {
  const auto requests = greedy_requests({prompt_of(90, 2), prompt_of(40, 3)}, 60);
  EngineOptions options = plain(requests, 4, 6);
  options.policy->micro_batch_sequences = 2;
  const Ran small = run("qwen3-windows", options, requests);
  ASSERT_EQ(small.plan.kv.size(), 2u);
  EXPECT_EQ(small.plan.kv[0].state.window, 13);
  EXPECT_EQ(small.plan.kv[0].num_layers, 3);
  EXPECT_EQ(small.plan.kv[0].ring_pages, 1 + (13 + 6 - 2 + 3) / 4);
  EXPECT_EQ(small.plan.kv[0].memory_pages, 2 * small.plan.kv[0].ring_pages);
  EXPECT_EQ(small.plan.kv[1].state.window, 0);
  EXPECT_EQ(small.plan.kv[1].num_layers, 1);
  EXPECT_GE(small.plan.kv[1].memory_pages, 38) << "of the longest sequence's 150 tokens";
  EXPECT_LE(small.most_used, small.pages);
  const Ran whole = run("qwen3-windows", plain(requests, 150, 256), requests);
  EXPECT_EQ(small.tokens, whole.tokens);
}

// Any chunk and page size, KV on disk too, gives the tokens of one page for everything.
TEST(Windows, ChunksAndPagesDoNotMatter) {
  for (const char* model : {"mistral-tiny", "qwen3-windows"}) {
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 5; ++i) prompts.push_back(prompt_of(1 + 29 * i, 10 + i));
    expect_same_tokens_however_cut(model, greedy_requests(prompts, 30), 16);
  }
}

}  // namespace
}  // namespace sluice::testing
