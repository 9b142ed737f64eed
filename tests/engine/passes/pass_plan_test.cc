#include "src/engine/passes/pass_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice {
namespace {

Sequence make_sequence(int64_t prompt, int64_t computed, int64_t output, bool score = false) {
  sampling::SamplingParams params;
  Sequence sequence{0,     {},          prompt, computed, {}, sampling::Sampler(params, {}),
                    score, std::nullopt};
  sequence.tokens.assign(static_cast<size_t>(prompt + output), 1);
  sequence.pages.groups.resize(1);
  sequence.pages.groups[0].pages.assign(200, PageRef{PageTier::kDisk, 0});
  return sequence;
}

// Of one group of layers that see everything.
PassLimits make_limits(int64_t sequences, int64_t tokens, int64_t pass_tokens,
                       int64_t page_tokens) {
  PassLimits limits{sequences, tokens, pass_tokens, page_tokens};
  limits.groups.resize(1);
  return limits;
}

TEST(PassPlan, EveryPendingTokenIsComputedOnceAndInOrder) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    std::vector<Sequence> sequences;
    for (int64_t i = pick(1, 9); i > 0; --i)
      sequences.push_back(pick(0, 1) ? make_sequence(pick(1, 60), 0, 0, pick(0, 3) == 0)
                                     : make_sequence(10, 10 + 2, 3));
    std::vector<Sequence*> pointers;
    for (Sequence& sequence : sequences) pointers.push_back(&sequence);
    const PassLimits limits = make_limits(pick(1, 4), pick(1, 20), pick(10, 80), pick(1, 8));
    int64_t passes = 0;
    for (;; ++passes) {
      ASSERT_LT(passes, 200) << "no progress, seed " << seed;
      const PassPlan plan = plan_pass(pointers, limits);
      if (plan.micro_batches.empty()) break;
      int64_t rows = 0;
      for (const auto& batch : plan.micro_batches) {
        EXPECT_EQ(batch->row_begin, rows);
        rows += batch->rows();
        EXPECT_LE(batch->rows(), limits.micro_batch_tokens);
        EXPECT_LE(static_cast<int64_t>(batch->chunks.size()), limits.micro_batch_sequences);
        EXPECT_GT(batch->rows(), 0);
        for (Chunk& chunk : batch->chunks) {
          EXPECT_EQ(chunk.first_position, chunk.sequence->computed) << "seed " << seed;
          chunk.sequence->computed += chunk.count;
        }
        EXPECT_EQ(batch->needed_rows.size(), batch->needed_chunks.size());
      }
      EXPECT_EQ(rows, plan.prefill_tokens + plan.decode_tokens);
    }
    for (const Sequence& sequence : sequences) EXPECT_EQ(sequence.pending(), 0);
  }
}

TEST(PassPlan, APromptCutAcrossMicroBatchesContinuesTheOneBefore) {
  Sequence sequence = make_sequence(25, 0, 0);
  Sequence* pointer = &sequence;
  const PassPlan plan = plan_pass({&pointer, 1}, make_limits(4, 10, 100, 4));
  ASSERT_EQ(plan.micro_batches.size(), 3u);
  EXPECT_FALSE(plan.micro_batches[0]->continues_previous);
  EXPECT_TRUE(plan.micro_batches[1]->continues_previous);
  EXPECT_TRUE(plan.micro_batches[2]->continues_previous);
  EXPECT_EQ(plan.micro_batches[0]->needed_rows.size(), 0u);
  EXPECT_EQ(plan.micro_batches[2]->needed_rows, std::vector<int32_t>{4});
}

// A later chunk of a prompt with pages below would bring them up again, or be attended on the host.
TEST(PassPlan, APromptWithPagesBelowIsNotCutWhereAFreshMicroBatchTakesIt) {
  for (const bool is_lower : {false, true}) {
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) sequences.push_back(make_sequence(6, 0, 0));
    std::vector<Sequence*> pointers;
    for (Sequence& sequence : sequences) {
      if (!is_lower) sequence.pages.groups[0].pages.assign(200, PageRef{PageTier::kCompute, 0});
      pointers.push_back(&sequence);
    }
    const PassPlan plan = plan_pass(pointers, make_limits(4, 10, 100, 4));
    std::vector<int64_t> rows;
    for (const auto& batch : plan.micro_batches) rows.push_back(batch->rows());
    EXPECT_EQ(rows, is_lower ? (std::vector<int64_t>{6, 6, 6}) : (std::vector<int64_t>{10, 8}));
  }
}

TEST(PassPlan, APromptWithPagesBelowWaitsForAPassThatTakesItWhole) {
  std::vector<Sequence> sequences;
  sequences.push_back(make_sequence(1, 4, 4));  // decodes
  for (int i = 0; i < 2; ++i) sequences.push_back(make_sequence(60, 0, 0));
  sequences.push_back(make_sequence(100, 0, 0));
  std::vector<Sequence*> pointers;
  for (Sequence& sequence : sequences) pointers.push_back(&sequence);
  std::vector<int64_t> tokens;
  for (int pass = 0; pass < 5; ++pass) {
    const PassPlan plan = plan_pass(pointers, make_limits(4, 64, 100, 4));
    tokens.push_back(plan.prefill_tokens);
    for (const auto& batch : plan.micro_batches)
      for (const Chunk& chunk : batch->chunks)
        if (chunk.sequence != pointers[0]) chunk.sequence->computed += chunk.count;
  }
  // 100 beside a decoding sequence fits no pass: it is cut, also behind another.
  EXPECT_EQ(tokens, (std::vector<int64_t>{60, 99, 61, 0, 0}));
}

TEST(PassPlan, StagedPagesSayWhatIsReadAndWhatIsWritten) {
  Sequence sequence = make_sequence(10, 10, 1);  // token 10 is new; pages of 4: 0..3 | 4..7 | 8..11
  sequence.computed = 10;
  sequence.pages.groups[0].pages[1].tier = PageTier::kCompute;
  Sequence* pointer = &sequence;
  const PassPlan plan = plan_pass({&pointer, 1}, make_limits(4, 10, 100, 4));
  const auto& staged = plan.micro_batches[0]->staged.at(0).pages;
  ASSERT_EQ(staged.size(), 2u);
  EXPECT_TRUE(staged[0].has_history);
  EXPECT_FALSE(staged[0].is_changed);
  EXPECT_TRUE(staged[1].has_history);
  EXPECT_TRUE(staged[1].is_changed);
}

// Of layers with a window a chunk works on the pages that it sees; others may be gone.
TEST(PassPlan, OfAWindowOnlyWhatIsSeenIsStaged) {
  Sequence sequence = make_sequence(10, 10, 1);  // pages of 4: 0..3 | 4..7 | 8..11
  GroupPages windowed = sequence.pages.groups[0];
  windowed.pages[0] = kGonePage;
  windowed.first = 1;
  sequence.pages.groups.push_back(windowed);
  PassLimits limits = make_limits(4, 10, 100, 4);
  limits.groups.push_back({{.heads = 1, .width = 8, .window = 6}});  // token 10 sees 5..10
  Sequence* pointer = &sequence;
  const PassPlan plan = plan_pass({&pointer, 1}, limits);
  const auto& staged = plan.micro_batches[0]->staged;
  EXPECT_EQ(staged.at(0).pages.size(), 3u);
  EXPECT_EQ(staged.at(1).pages.size(), 2u);
  EXPECT_EQ(plan.micro_batches[0]->chunks[0].first_staged, (std::vector<int32_t>{0, 0}));
}

}  // namespace
}  // namespace sluice
