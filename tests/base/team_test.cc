#include "src/base/team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using Clock = Team::Clock;

// Waits for what another thread does; false when it does not come in a time that no machine needs.
bool comes(const std::function<bool()>& is_there) {
  const Clock::time_point until = Clock::now() + std::chrono::seconds(60);
  while (!is_there()) {
    if (Clock::now() > until) return false;
    sched_yield();
  }
  return true;
}

TEST(Team, DealsEachThingOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    Team team(threads);
    const Team::Use use(team);
    EXPECT_EQ(loop_threads(), threads);
    for (const int64_t n : {0, 1, 2, 5, 63, 64, 65, 1000, 4097})
      for (const Shares& shares : {Shares{}, Shares{.granule = 32}, Shares{.least = 7},
                                   Shares{.granule = 16, .least = 40, .most = 100},
                                   Shares{.granule = 5, .least = 3, .most = 1}}) {
        std::vector<std::atomic<int>> times(static_cast<size_t>(n));
        deal(n, shares, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_TRUE(begin % shares.granule == 0);
          if (threads > 1 && n > shares.least && shares.most < n) {
            EXPECT_LE(end - begin, std::max({shares.most, shares.least, shares.granule}));
          }
          for (int64_t i = begin; i < end; ++i) ++times[static_cast<size_t>(i)];
        });
        for (const auto& count : times) ASSERT_EQ(count, 1) << n << " on " << threads;
      }
  }
}

TEST(Team, NumbersItsMembers) {
  Team team(4);
  const Team::Use use(team);
  for (const int members : {1, 2, 3, 9}) {
    std::mutex mutex;
    std::set<int> seen;
    for (int i = 0; i < 200; ++i)
      deal_to_members(50, {.members = members}, [&](int64_t, int64_t, int member) {
        const std::lock_guard lock(mutex);
        seen.insert(member);
      });
    EXPECT_LE(*seen.rbegin(), std::min(members, 4) - 1);
    EXPECT_EQ(*seen.begin(), 0);
  }
}

TEST(Team, RunsLoopsWithinLoopsOnOneThread) {
  Team team(3);
  const Team::Use use(team);
  std::atomic<int64_t> sum = 0;
  deal_each(20, 1, [&](int64_t i) {
    EXPECT_EQ(Team::current(), nullptr);
    const std::thread::id outer = std::this_thread::get_id();
    deal_each(100, 1, [&](int64_t j) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      sum += i * j;
    });
  });
  EXPECT_EQ(sum, 190 * 4950);
  EXPECT_EQ(Team::current(), &team);
}

TEST(Team, BelongsToTheThreadThatUsesIt) {
  Team team(2);
  EXPECT_EQ(Team::current(), nullptr);
  EXPECT_EQ(loop_threads(), 1);
  const Team::Use use(team);
  {
    Team inner(3);
    const Team::Use use_inner(inner);
    EXPECT_EQ(Team::current(), &inner);
  }
  EXPECT_EQ(Team::current(), &team);
  std::thread([] { EXPECT_EQ(Team::current(), nullptr); }).join();
}

TEST(Team, WorksBesideOthers) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([] {
      Team team(3);
      const Team::Use use(team);
      for (int i = 0; i < 300; ++i) {
        std::vector<int64_t> squares(257);
        deal_each(257, 3, [&](int64_t k) { squares[static_cast<size_t>(k)] = k * k; });
        ASSERT_EQ(std::accumulate(squares.begin(), squares.end(), int64_t{0}), 5625216);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(Team, EndsWhateverItsHelpersDo) {
  for (int i = 0; i < 100; ++i) {
    Team team(4);
    const Team::Use use(team);
    std::atomic<int64_t> sum = 0;
    for (int loop = 0; loop < i % 4; ++loop) deal_each(64, 1, [&](int64_t k) { sum += k; });
    EXPECT_EQ(sum, 2016 * (i % 4));
  }
}

// A helper that stalls while it holds a share: all others are done meanwhile.
TEST(Team, IsDelayedByNothingBeyondTheShareOfAStalledHelper) {
  Team team(2);
  const Team::Use use(team);
  constexpr int kShares = 64;
  std::atomic<int> done = 0;
  std::atomic<bool> is_held = false;
  bool was_right = false;
  deal_to_members(kShares, {.most = 1}, [&](int64_t, int64_t, int member) {
    if (member == 0) {
      EXPECT_TRUE(comes([&] { return is_held.load(); }));
    } else if (!is_held.exchange(true)) {
      was_right = comes([&] { return done == kShares - 1; });
    }
    ++done;
  });
  EXPECT_TRUE(was_right) << "shares waited for one that was held";
  EXPECT_EQ(done, kShares);
}

#ifndef __SANITIZE_THREAD__  // it holds signals back
std::atomic<int> stopped = 0;
std::atomic<bool> may_go = false;

// A thread that the scheduler took from its core, as far as others can see.
void stop_here(int) {
  ++stopped;
  while (!may_go) sched_yield();
}

TEST(Team, WaitsForNobodyWhoHoldsNoShare) {
  Team team(3);
  const Team::Use use(team);
  std::atomic<int> inside = 0;
  std::array<pthread_t, 3> threads{};
  team.run(3, [&](const Team::Turn& turn) {
    threads[static_cast<size_t>(turn.member())] = pthread_self();
    ++inside;
    EXPECT_TRUE(comes([&] { return inside >= 3; }));
  });
  struct sigaction action {};
  action.sa_handler = stop_here;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  stopped = 0;
  may_go = false;
  for (const size_t helper : {1, 2}) ASSERT_EQ(pthread_kill(threads[helper], SIGUSR1), 0);
  ASSERT_TRUE(comes([] { return stopped == 2; }));
  // Were they waited for, the first loop would not end.
  for (int loop = 0; loop < 100; ++loop) {
    int by_caller = 0;
    deal_to_members(10, {}, [&](int64_t begin, int64_t end, int member) {
      ASSERT_EQ(member, 0);
      by_caller += static_cast<int>(end - begin);
    });
    ASSERT_EQ(by_caller, 10);
  }
  may_go = true;
  // They are back.
  std::atomic<int> members = 0;
  team.run(3, [&](const Team::Turn&) {
    ++members;
    EXPECT_TRUE(comes([&] { return members >= 3; }));
  });
  sigaction(SIGUSR1, &before, nullptr);
}
#endif

TEST(Team, BenchesWhoIsLateAndTakesItBack) {
  Team team(2, Patience(2, Patience::Nanoseconds{0}));
  const Team::Use use(team);
  std::atomic<bool> is_held = false, caller_is_done = false;
  team.run(2, [&](const Team::Turn& turn) {
    if (turn.member() == 0) {
      EXPECT_TRUE(comes([&] { return is_held.load(); }));
      caller_is_done = true;
    } else if (!is_held.exchange(true)) {
      EXPECT_TRUE(comes([&] { return caller_is_done.load(); }));
      // Long enough for the caller to give up looking out for it.
      const Clock::time_point until = Clock::now() + std::chrono::milliseconds(20);
      while (Clock::now() < until) sched_yield();
    }
  });
  EXPECT_EQ(team.benched(), 0);
  bool helper_came = false;
  do {  // until the bench is over
    team.run(2, [&](const Team::Turn& turn) {
      if (turn.member() != 0) helper_came = true;
    });
    EXPECT_FALSE(helper_came && team.benched() > 0);
  } while (team.benched() > 0);
  std::atomic<int> members = 0;
  team.run(2, [&](const Team::Turn&) {
    ++members;
    EXPECT_TRUE(comes([&] { return members >= 2; }));
  });
}

TEST(Team, GivesTheCallerItsTurnToTheEnd) {
  Team team(2);
  std::atomic<int> turns = 0;
  team.run(2, [&](const Team::Turn& turn) {
    if (turn.member() == 0) {
      EXPECT_TRUE(comes([&] { return turns >= 3; }));  // the helper's end, and it comes again
      EXPECT_FALSE(turn.is_over());
    } else {
      EXPECT_TRUE(comes([&] { return turn.is_over(); }));
      ++turns;
    }
  });
}

}  // namespace
}  // namespace sluice
