// Layers that read what another layer keeps: they have no pages, and the tokens are the same
// whatever the cuts, wherever pages lie, and when a known beginning's are taken up.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/engine/stores/page_runs.h"

namespace sluice::testing {
namespace {

constexpr const char* kSharingModels[] = {"gemma4-tiny", "gemma4-odd"};

std::vector<GenerationRequest> some_requests(uint32_t count, int64_t step, int64_t most) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < count; ++i) prompts.push_back(short_prompt(1 + step * i, 10 + i));
  return greedy_requests(prompts, most);
}

// Layers 0 and 1 have a window and keep theirs, layer 2 sees everything; 3 and 4 read layer 1's, 5
// reads layer 2's.
TEST(SharedState, IsKeptOnce) {
  const auto requests = greedy_requests({short_prompt(90, 1), short_prompt(40, 2)}, 20);
  EngineOptions options = plain(requests, 4, 8);
  options.policy->micro_batch_sequences = 2;
  const Ran ran = run("gemma4-tiny", options, requests);
  ASSERT_EQ(ran.plan.kv.size(), 2u);
  const policy::KvPlan& window = ran.plan.kv[0];
  const policy::KvPlan& full = ran.plan.kv[1];
  EXPECT_EQ(window.state.window, 32);
  EXPECT_EQ(window.num_layers, 2);
  EXPECT_EQ(window.num_readers, 2);
  EXPECT_EQ(window.read_layers, std::vector<int64_t>{1});
  EXPECT_EQ(full.num_layers, 1);
  EXPECT_EQ(full.num_readers, 1);
  EXPECT_EQ(full.read_layers, std::vector<int64_t>{0});
  // 2 KV heads of 6 and of 8 columns, f32.
  EXPECT_EQ(window.page_bytes, 4 * 4 * 2 * 2 * 6);
  EXPECT_EQ(full.page_bytes, 4 * 4 * 2 * 2 * 8);
  EXPECT_EQ(ran.plan.kv_memory_bytes(),
            2 * window.memory_pages * window.page_bytes + full.memory_pages * full.page_bytes);
}

// What a pass has written of a window is still there when the last layer has read it: a sequence's
// ring holds a window and all of a pass, where other models' hold one chunk.
TEST(SharedState, AWindowsRingHoldsThePass) {
  const auto requests = greedy_requests({short_prompt(120, 1)}, 20);
  EngineOptions options = plain(requests, 4, 8);
  options.policy->pass_tokens = 24;
  const Ran ran = run("gemma4-tiny", options, requests);
  EXPECT_EQ(ran.plan.kv[0].ring_pages, 1 + (32 + 24 - 2 + 3) / 4);
  EXPECT_LE(ran.most_used, ran.pages);
  const Ran whole = run("gemma4-tiny", plain(requests, 160, 256), requests);
  EXPECT_EQ(ran.tokens, whole.tokens);
}

// Greedy tokens come from the last position, to which what earlier ones read of another layer does
// not reach: the logits of every position are compared.
TEST(SharedState, EveryPositionsLogitsDoNotDependOnChunks) {
  for (const char* model : kSharingModels) {
    auto requests = greedy_requests({short_prompt(120, 1), short_prompt(77, 2)}, 1);
    for (GenerationRequest& request : requests) request.score_prompt = true;
    EngineOptions options = plain(requests, 160, 256);
    auto whole = run_all(model, options, requests);
    for (const auto& [chunk, pass] : {std::pair{4, 24}, {5, 60}, {17, 40}, {1, 9}}) {
      options.policy->micro_batch_tokens = chunk;
      options.policy->pass_tokens = pass;
      auto cut = run_all(model, options, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(cut[i].logits.size(), whole[i].logits.size());
        float worst = 0, largest = 0;
        for (size_t at = 0; at < whole[i].logits.size(); ++at) {
          worst = std::max(worst, std::abs(cut[i].logits[at] - whole[i].logits[at]));
          largest = std::max(largest, std::abs(whole[i].logits[at]));
        }
        EXPECT_LE(worst, 1e-4F * largest) << model << " " << chunk << " of " << pass;
      }
    }
  }
}

TEST(SharedState, ChunksAndPagesDoNotMatter) {
  for (const char* model : kSharingModels)
    expect_same_tokens_however_cut(model, some_requests(5, 29, 30), 16);
}

TEST(SharedState, KnownBeginningsAreTakenUp) {
  for (const char* model : kSharingModels) {
    EXPECT_GE(known_beginnings(model).at(1), 32) << model;
  }
}

// Prompts from their first token are attended by the device, which keeps them until the last layer
// has read them; others by the host, or in long runs by the device again.
TEST(SharedState, IsAttendedOnTheHostToo) {
  for (const char* model : kSharingModels) {
    const auto requests = some_requests(6, 13, 20);
    const Ran whole = run(model, plain(requests, 160, 256), requests);
    for (uint32_t seed = 1; seed <= 12; ++seed) {
      EngineOptions options = attended_on_host(requests, seed);
      options.policy->weights = {0.3, 0.4, 0.3};
      options.policy->inplace_host_fraction = seed % 2 == 0 ? 0.4 : 0;
      if (seed % 4 == 0) options.policy->pass_tokens = 30;
      const Ran ran = run(model, options, requests);
      EXPECT_EQ(ran.tokens, whole.tokens)
          << model << " " << seed << " " << policy::policy_to_json(*options.policy);
      EXPECT_GT(ran.plan.kept_fresh_pages, 0);
    }
  }
}

// On an emulated device that attends to all of it, pages below.
TEST(SharedState, ComesUpWithWhatThePassHasChanged) {
  for (const char* model : kSharingModels) {
    const auto requests = some_requests(5, 17, 24);
    const Ran whole = run(model, plain(requests, 160, 256), requests);
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      Random random(seed);
      EngineOptions options = plain(requests, pick(random, 1, 9), pick(random, 2, 30));
      options.device = EmulatedSpec{int64_t{64} << 20, 0, 0, 0, 0};
      options.policy->kv =
          seed % 2 == 0 ? policy::TierShares{0, 0, 1} : policy::TierShares{0.2, 0.4, 0.4};
      options.policy->activations = {0.4, 0.3, 0.3};
      options.policy->micro_batch_sequences = pick(random, 1, 3);
      options.policy->micro_batches = pick(random, 1, 3);
      EXPECT_EQ(run(model, options, requests).tokens, whole.tokens)
          << model << " " << seed << " " << policy::policy_to_json(*options.policy);
    }
  }
}

// The newest tokens in 16 bits beside 8-bit pages: written by the layer that keeps them, read by
// the others after all of the pass.
TEST(SharedState, HasRecentTokensIn16Bits) {
  for (const char* model : kSharingModels) {
    const auto requests = some_requests(4, 41, 20);
    EngineOptions options = plain(requests, 8, 256);
    options.kv_dtype = KvFormat(KvEncoding::kInt8);
    options.policy->page_tokens = 8;
    options.kv_recent_tokens = 24;
    const Ran whole = run(model, options, requests);
    for (const int64_t chunk : {1, 7, 20}) {
      options.policy->micro_batch_tokens = chunk;
      options.policy->pass_tokens = chunk == 7 ? 30 : 0;
      EXPECT_EQ(run(model, options, requests).tokens, whole.tokens) << model << " " << chunk;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
