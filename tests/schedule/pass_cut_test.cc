// The rules by which real and imagined sequences are cut into passes and micro-batches.
#include "src/schedule/pass_cut.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <string>

namespace sluice {
namespace {

TEST(PassCut, DecodingSequencesGoFirstAndPromptsTakeWhatIsLeft) {
  PassLimits limits;
  limits.pass_tokens = 10;
  limits.micro_batch_tokens = 4;
  const std::vector<PendingTokens> pending{
      {0, 6, false, false}, {9, 1, true, false}, {0, 0, false, false}, {3, 7, false, false}};
  const PassTokens taken = take_tokens(pending, limits);
  EXPECT_EQ(taken.decode_tokens, 1);
  EXPECT_EQ(taken.prefill_tokens, 9);
  ASSERT_EQ(taken.runs.size(), 3u);
  EXPECT_EQ(taken.runs[0].sequence, 1);
  EXPECT_EQ(taken.runs[1].count, 6);
  EXPECT_EQ(taken.runs[2].sequence, 3);
  EXPECT_EQ(taken.runs[2].count, 3) << "the rest waits for the next pass";
}

TEST(PassCut, ShortPromptsDoNotWaitBehindALongOne) {
  PassLimits limits;
  limits.pass_tokens = 100;
  limits.micro_batch_tokens = 100;
  const auto taken_of = [&](const std::vector<int64_t>& prompts, bool is_lower = false) {
    std::vector<PendingTokens> pending;
    for (int64_t count : prompts) pending.push_back({0, count, false, is_lower});
    std::vector<int64_t> out(prompts.size(), 0);
    for (const TokenRun& run : take_tokens(pending, limits).runs)
      out[static_cast<size_t>(run.sequence)] += run.count;
    return out;
  };
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(taken_of({6000, 8}), (Counts{92, 8}));
  EXPECT_EQ(taken_of({6000, 51, 30, 20, 20}), (Counts{60, 0, 0, 20, 20}))
      << "half stays the first's";
  EXPECT_EQ(taken_of({6000, 51}), (Counts{100, 0})) << "they go whole or not at all";
  EXPECT_EQ(taken_of({60, 6000, 20}), (Counts{60, 20, 20}));
  EXPECT_EQ(taken_of({6000, 6000, 6000}), (Counts{100, 0, 0}));
  EXPECT_EQ(taken_of({60, 60, 10}, /*is_lower=*/true), (Counts{60, 0, 10}));
  // Whatever comes behind it, who is first has half of each pass.
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Counts prompts{101 + static_cast<int64_t>(random() % 500)};
    for (int i = 0; i < 20; ++i) prompts.push_back(1 + static_cast<int64_t>(random() % 300));
    const Counts taken = taken_of(prompts);
    ASSERT_GE(taken.front(), 50);
    ASSERT_EQ(std::accumulate(taken.begin(), taken.end(), int64_t{0}), 100);
  }
}

TEST(PassCut, OneWithPagesBelowWaitsForAPassThatTakesItWhole) {
  PassLimits limits;
  limits.pass_tokens = 10;
  limits.micro_batch_tokens = 8;
  const std::vector<PendingTokens> pending{{0, 6, false, false}, {0, 5, false, true}};
  EXPECT_EQ(take_tokens(pending, limits).runs.size(), 1u);
  // No pass takes it whole: then it is cut.
  const std::vector<PendingTokens> long_one{{0, 6, false, false}, {0, 25, false, true}};
  const PassTokens cut = take_tokens(long_one, limits);
  ASSERT_EQ(cut.runs.size(), 2u);
  EXPECT_EQ(cut.runs[1].count, 4);
  EXPECT_TRUE(cut.runs[1].is_whole) << "but its chunk stays together";
}

TEST(PassCut, MicroBatchesHoldEveryTokenOnceWithinTheirLimits) {
  std::mt19937 random(61);
  for (int round = 0; round < 300; ++round) {
    PassLimits limits;
    limits.micro_batch_tokens = 1 + static_cast<int64_t>(random() % 20);
    limits.micro_batch_sequences = 1 + static_cast<int64_t>(random() % 5);
    MicroBatchCutter cutter(limits);
    std::vector<TokenRun> runs(1 + random() % 12);
    for (size_t i = 0; i < runs.size(); ++i) {
      runs[i] = {static_cast<int64_t>(i), static_cast<int64_t>(random() % 30),
                 1 + static_cast<int64_t>(random() % 40), false};
      runs[i].is_whole = runs[i].count <= limits.micro_batch_tokens && random() % 2 == 0;
      cutter.add(runs[i]);
    }
    std::vector<int64_t> next;
    for (const TokenRun& run : runs) next.push_back(run.first);
    bool was_cut = false;
    for (const MicroBatchCut& cut : cutter.take()) {
      ASSERT_EQ(cut.continues_previous, was_cut);
      int64_t rows = 0;
      for (const TokenRun& piece : cut.runs) {
        const auto sequence = static_cast<size_t>(piece.sequence);
        ASSERT_EQ(piece.first, next[sequence]);
        next[sequence] += piece.count;
        rows += piece.count;
        ASSERT_TRUE(!runs[sequence].is_whole || piece.count == runs[sequence].count);
      }
      ASSERT_EQ(rows, cut.rows);
      ASSERT_LE(rows, limits.micro_batch_tokens);
      ASSERT_LE(static_cast<int64_t>(cut.runs.size()), limits.micro_batch_sequences);
      const auto last = static_cast<size_t>(cut.runs.back().sequence);
      was_cut = next[last] < runs[last].first + runs[last].count;
    }
    for (size_t i = 0; i < runs.size(); ++i) ASSERT_EQ(next[i], runs[i].first + runs[i].count);
  }
}

TEST(PassCut, ASlotThatIsFullEndsTheMicroBatch) {
  // Sequence i has i pages below, one of them on disk, in the second group of layers.
  struct Pages final : PageMap {
    LowerPages lower_pages(int64_t sequence, int32_t group) const override {
      return group == 0 ? LowerPages{} : LowerPages{sequence, sequence > 0 ? 1 : 0};
    }
    LowerPages lower_pages(int64_t sequence, int32_t group, int64_t, int64_t) const override {
      return lower_pages(sequence, group);
    }
  } pages;
  PassLimits limits;
  limits.micro_batch_tokens = limits.micro_batch_sequences = 100;
  const auto sizes = [&] {
    MicroBatchCutter cutter(limits, &pages);
    for (int64_t i = 0; i < 5; ++i) cutter.add({i, 0, 1, false});
    std::vector<size_t> out;
    for (const MicroBatchCut& cut : cutter.take()) out.push_back(cut.runs.size());
    return out;
  };
  EXPECT_EQ(sizes(), (std::vector<size_t>{5}));
  limits.groups.resize(2);
  EXPECT_EQ(sizes(), (std::vector<size_t>{5}));
  limits.groups[1].staged.all = 4;
  EXPECT_EQ(sizes(), (std::vector<size_t>{3, 1, 1}));
  limits.groups[1].staged = {100, 2};
  EXPECT_EQ(sizes(), (std::vector<size_t>{3, 2}));
}

TEST(PassCut, PagesOfARun) {
  // Pages of 4: positions 5..8 read pages 0 and 1, change 1 and 2.
  const PagesOfRun pages = pages_of_run(5, 4, 4);
  EXPECT_EQ(pages.end, 3);
  EXPECT_EQ(pages.with_history, 2);
  EXPECT_EQ(pages.first_changed, 1);
  EXPECT_EQ(pages_of_run(0, 8, 4).with_history, 0);
  EXPECT_EQ(pages_of_run(8, 1, 4).with_history, 2);
  EXPECT_EQ(pages_of_run(8, 1, 4).begin, 0);
  EXPECT_EQ(pages_of_run(8, 1, 4, 5).begin, 1) << "the first position seen is in page 1";
}

// Of a recurrent state: the page that the run begins from and those it leaves, with what each is
// for; against a walk over all positions.
TEST(PassCut, ARunOfARecurrentStateWorksOnThreePagesAtMost) {
  const LayerState state = recurrent_state({1, 1, 2, 2, 2});
  for (int64_t page_tokens = 1; page_tokens <= 5; ++page_tokens)
    for (int64_t first = 0; first < 12; ++first)
      for (int64_t count = 1; count < 23; ++count) {
        SCOPED_TRACE(std::to_string(page_tokens) + " " + std::to_string(first) + " " +
                     std::to_string(count));
        const int64_t from = first > 0 ? (first - 1) / page_tokens : -1;
        const int64_t last = (first + count - 1) / page_tokens;
        // Behind it: a border within the run, of a page whose last token is the run's.
        const bool keeps = last > 0 && last * page_tokens > first;
        std::set<int64_t> expected{last};
        if (from >= 0) expected.insert(from);
        if (keeps) expected.insert(last - 1);
        int64_t before = -1, pages = 0;
        for_each_page(state, first, count, page_tokens,
                      [&](int64_t page, bool has_history, bool is_changed) {
                        EXPECT_GT(page, before);
                        before = page;
                        EXPECT_TRUE(expected.contains(page)) << page;
                        EXPECT_EQ(has_history, page == from) << page;
                        EXPECT_EQ(is_changed, page == last || (keeps && page == last - 1)) << page;
                        ++pages;
                      });
        EXPECT_EQ(pages, std::ssize(expected));
        EXPECT_LE(pages, kMostRecurrentPages);
      }
}

// A page is used again for the one so many behind it: no chunk has tokens that see the first beside
// tokens of the other, and with one page fewer some chunk would.
TEST(PassCut, AWindowsPagesAreUsedAgainWhenNoChunkSeesThem) {
  for (int64_t window = 1; window <= 12; ++window)
    for (int64_t chunk = 1; chunk <= 9; ++chunk)
      for (int64_t page_tokens = 1; page_tokens <= 5; ++page_tokens) {
        const int64_t ring = most_window_pages(window, chunk, page_tokens);
        bool meets = false, meets_with_fewer = false;
        for (int64_t first = 0; first < 60; ++first) {
          const int64_t seen = std::max<int64_t>(first - window + 1, 0) / page_tokens;
          const int64_t last = (first + chunk - 1) / page_tokens;
          meets = meets || last - seen >= ring;
          meets_with_fewer = meets_with_fewer || last - seen >= ring - 1;
        }
        EXPECT_FALSE(meets) << window << " " << chunk << " " << page_tokens;
        EXPECT_TRUE(meets_with_fewer) << window << " " << chunk << " " << page_tokens;
      }
}

}  // namespace
}  // namespace sluice
