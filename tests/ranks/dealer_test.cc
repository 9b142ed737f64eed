// Which rank gets which row, when it loses it, and that every row is finished once.
#include "src/ranks/dealer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace sluice::ranks {
namespace {

jobs::ContentKey key_of(int64_t line) {
  return {static_cast<uint64_t>(line) * 0x9e3779b97f4a7c15u, static_cast<uint64_t>(line)};
}

std::vector<Row> rows_of(const std::vector<int64_t>& lengths) {
  std::vector<Row> out;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto line = static_cast<int64_t>(i) + 1;
    out.push_back({line, line * 100, 50, lengths[i], key_of(line)});
  }
  return out;
}

std::string lines(const std::vector<Row>& rows) {
  std::string out;
  for (const Row& row : rows) out += std::to_string(row.line) + " ";
  return out;
}

TEST(Dealer, DealsLongRowsFirstAndHalfOfAnEvenShare) {
  Dealer dealer(rows_of({1, 9, 5, 5, 7, 3, 8, 2}), 2, {});
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 0)), "") << "before it has joined";
  dealer.join(0, 0);
  dealer.join(1, 0);
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 0)), "2 7 ") << "8 rows of 2 ranks: 2";
  EXPECT_EQ(lines(dealer.deal(1, 1, true, 0)), "5 ");
  EXPECT_EQ(lines(dealer.deal(1, 9, true, 0)), "3 4 ") << "equal ones in the input's order";
  EXPECT_EQ(lines(dealer.deal(0, 9, false, 0)), "") << "the last ones not ahead of need";
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 0)), "6 ");
  EXPECT_EQ(dealer.waiting(), 2);
  EXPECT_EQ(dealer.left(), 8);
  EXPECT_EQ(dealer.held(0), 3);
}

TEST(Dealer, ARowIsFinishedOnceWhoeverSendsIt) {
  Dealer dealer(rows_of({1, 1}), 2, {});
  dealer.join(0, 0);
  dealer.join(1, 0);
  dealer.deal(0, 1, true, 0);
  EXPECT_TRUE(dealer.finish(1, key_of(1)));
  EXPECT_FALSE(dealer.finish(0, key_of(1)));
  EXPECT_FALSE(dealer.finish(0, key_of(77))) << "no row of the job";
  EXPECT_TRUE(dealer.finish(0, key_of(2))) << "also one that nobody was dealt";
  EXPECT_TRUE(dealer.is_done());
  EXPECT_EQ(dealer.waiting(), 0);
  EXPECT_EQ(dealer.finished(0), 1);
  EXPECT_EQ(dealer.finished(1), 1);
  EXPECT_EQ(lines(dealer.deal(1, 9, true, 0)), "");
}

TEST(Dealer, ASilentRankLosesItsRowsAndMayComeBack) {
  Dealer dealer(rows_of({4, 3, 2, 1}), 2, {10, 1000});
  dealer.join(0, 0);
  dealer.join(1, 0);
  EXPECT_EQ(lines(dealer.deal(0, 1, true, 0)), "1 ");
  EXPECT_EQ(lines(dealer.deal(1, 1, true, 0)), "2 ");
  dealer.hear(1, 1, 10);
  EXPECT_TRUE(dealer.give_up(10).empty());
  EXPECT_EQ(dealer.give_up(10.1), std::vector<int>{0});
  EXPECT_TRUE(dealer.give_up(10.2).empty()) << "once";
  EXPECT_EQ(dealer.state(0), RankState::kLost);
  EXPECT_EQ(dealer.working(), 1);
  EXPECT_EQ(lines(dealer.deal(0, 1, true, 11)), "");
  EXPECT_EQ(lines(dealer.deal(1, 2, true, 11)), "1 3 ") << "what was taken comes first";
  dealer.hear(0, 0, 12);
  EXPECT_EQ(dealer.state(0), RankState::kWorking);
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 12)), "4 ");
  EXPECT_TRUE(dealer.finish(0, key_of(1))) << "late, but the first";
  EXPECT_FALSE(dealer.finish(1, key_of(1)));
  EXPECT_EQ(dealer.dealt_again(), 1);
}

TEST(Dealer, NeverDealsARowToWhoMayStillComputeIt) {
  Dealer dealer(rows_of({2, 1}), 2, {10, 1000});
  dealer.join(0, 0);
  dealer.deal(0, 1, true, 0);
  dealer.give_up(20);
  dealer.hear(0, 5, 21);
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 21)), "2 ");
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 21)), "");
  dealer.join(1, 21);
  EXPECT_EQ(lines(dealer.deal(1, 9, true, 21)), "1 ");
}

TEST(Dealer, ARankThatGetsNowhereLosesItsRowsAndOneThatWaitsDoesNot) {
  Dealer dealer(rows_of({3, 2, 1}), 3, {10, 100});
  for (int rank = 0; rank < 3; ++rank) dealer.join(rank, 0);
  dealer.deal(0, 1, true, 0);
  dealer.deal(1, 1, true, 0);
  for (double now = 5; now <= 100; now += 5) {
    dealer.hear(0, 1, now);                          // words, no passes but the first
    dealer.hear(1, static_cast<int64_t>(now), now);  // passes
    dealer.hear(2, 0, now);                          // nothing to do
    EXPECT_TRUE(dealer.give_up(now).empty()) << now;
  }
  for (int rank = 0; rank < 3; ++rank) dealer.hear(rank, rank == 1 ? 999 : rank == 0, 106);
  EXPECT_EQ(dealer.give_up(106), std::vector<int>{0});
  dealer.hear(0, 1, 107);
  EXPECT_EQ(dealer.state(0), RankState::kLost) << "words alone do not bring it back";
  dealer.hear(0, 2, 108);
  EXPECT_EQ(dealer.state(0), RankState::kWorking);
}

TEST(Dealer, TakesWhatRanksHoldFromBefore) {
  Dealer dealer(rows_of({3, 2, 1}), 2, {10, 1000});
  dealer.join(0, 0);
  dealer.join(1, 0);
  EXPECT_TRUE(dealer.hold(1, key_of(1)));
  EXPECT_FALSE(dealer.hold(1, key_of(50)));
  EXPECT_TRUE(dealer.finish(0, key_of(2)));
  EXPECT_FALSE(dealer.hold(1, key_of(2)));
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 0)), "3 ");
  dealer.leave(1);  // before it has sent it
  EXPECT_EQ(dealer.state(1), RankState::kLeft);
  EXPECT_EQ(lines(dealer.deal(0, 9, true, 0)), "1 ");
  dealer.hear(1, 1, 1);
  EXPECT_EQ(dealer.state(1), RankState::kLeft) << "a goodbye is for good";
}

// Thousands of random events, held against a plain account of who holds what.
TEST(Dealer, EveryRowIsFinishedOnceWhateverHappens) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const int ranks = 1 + static_cast<int>(below(5));
    std::vector<int64_t> lengths(static_cast<size_t>(1 + below(200)));
    for (int64_t& length : lengths) length = below(30);
    Dealer dealer(rows_of(lengths), ranks, {10, 40});
    std::vector<std::set<int64_t>> computing(static_cast<size_t>(ranks));
    std::vector<bool> is_dead(static_cast<size_t>(ranks));
    std::map<int64_t, int> kept;
    std::vector<int64_t> passes(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) dealer.join(rank, 0);
    double now = 0;
    for (int step = 0; step < 20000 && !dealer.is_done(); ++step) {
      now += 0.1 * static_cast<double>(below(10));
      const int rank = static_cast<int>(below(ranks));
      const auto r = static_cast<size_t>(rank);
      dealer.give_up(now);
      if (is_dead[r]) {
        is_dead[r] = below(200) != 0;  // rank 0 never dies; some wake up
        continue;
      }
      dealer.hear(rank, ++passes[r], now);
      if (below(3) == 0) {
        for (const Row& row : dealer.deal(rank, 1 + below(6), below(2) != 0, now))
          EXPECT_TRUE(computing[r].insert(row.line).second) << "dealt twice to one rank";
      } else if (!computing[r].empty()) {
        auto it = computing[r].begin();
        std::advance(it, below(static_cast<int64_t>(computing[r].size())));
        if (dealer.finish(rank, key_of(*it))) ++kept[*it];
        computing[r].erase(it);
      }
      if (rank > 0 && below(300) == 0) is_dead[r] = true;
    }
    EXPECT_TRUE(dealer.is_done()) << seed;
    EXPECT_EQ(kept.size(), lengths.size()) << seed;
    for (const auto& [line, times] : kept) EXPECT_EQ(times, 1) << line;
    EXPECT_EQ(dealer.waiting(), 0) << seed;
  }
}

}  // namespace
}  // namespace sluice::ranks
