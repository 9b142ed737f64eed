#include "src/serve/request_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

namespace sluice::serve {
namespace {

GenerationRequest request(uint64_t id, size_t prompt = 1, int max_tokens = 1,
                          int32_t priority = 0) {
  GenerationRequest out;
  out.id = id;
  out.prompt.assign(prompt, 5);
  out.params.max_tokens = max_tokens;
  out.priority = priority;
  return out;
}

std::vector<uint64_t> order_of(QueueOrder order) {
  RequestQueue queue(10, order);
  queue.push({request(1, 9, 9, 2)});
  queue.push({request(2, 1, 2, 1)});
  queue.push({request(3, 1, 2, 3)});
  queue.push({request(4, 3, 3, 1)});
  std::vector<uint64_t> out;
  while (auto next = queue.next()) out.push_back(next->id);
  return out;
}

TEST(RequestQueue, GivesRequestsOutInItsOrder) {
  EXPECT_EQ(order_of(QueueOrder::kFirstCome), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(order_of(QueueOrder::kPriority), (std::vector<uint64_t>{2, 4, 1, 3}));
  EXPECT_EQ(order_of(QueueOrder::kShortest), (std::vector<uint64_t>{2, 3, 4, 1}));
}

GenerationRequest request_of(uint64_t caller, uint64_t id, size_t prompt = 1, double weight = 1) {
  GenerationRequest out = request(id, prompt);
  out.caller = {caller, weight};
  return out;
}

TEST(RequestQueue, WhoHasHadTheFewestTokensIsNext) {
  RequestQueue queue(20, QueueOrder::kFirstCome);
  for (uint64_t id = 1; id <= 4; ++id) queue.push({request_of(1, id, 10)});
  EXPECT_EQ(queue.next()->id, 1u);
  queue.push({request_of(2, 11), request_of(2, 12)});
  // The second begins with what the first has had; then who came first is next.
  EXPECT_EQ(queue.next()->id, 2u);
  EXPECT_EQ(queue.next()->id, 11u);
  queue.brought(11, 4);
  EXPECT_EQ(queue.next()->id, 12u) << "10 + 1 + 8 against 20";
  queue.brought(12, 1);
  EXPECT_EQ(queue.next()->id, 3u);
}

TEST(RequestQueue, KnownTokensOfPromptsCostNothing) {
  RequestQueue queue(20, QueueOrder::kFirstCome);
  queue.push({request_of(1, 1, 50), request_of(1, 2), request_of(2, 3, 20), request_of(2, 4)});
  EXPECT_EQ(queue.next()->id, 1u);
  EXPECT_EQ(queue.next()->id, 3u);
  queue.started(1, 48);
  EXPECT_EQ(queue.next()->id, 2u) << "2 tokens against 20";
}

TEST(RequestQueue, WhoComesBackHasNoCreditAndWhoLeftNoDebt) {
  RequestQueue queue(50, QueueOrder::kFirstCome);
  for (uint64_t id = 1; id <= 20; ++id) queue.push({request_of(1, id, 10)});
  queue.push({request_of(2, 31)});
  EXPECT_EQ(queue.next()->id, 1u);
  EXPECT_EQ(queue.next()->id, 31u);
  queue.ended(31);
  for (uint64_t id = 2; id <= 10; ++id) EXPECT_EQ(queue.next()->id, id);
  // It has asked for nothing meanwhile: it has not saved up turns.
  queue.push({request_of(2, 32, 10), request_of(2, 33, 10), request_of(2, 34, 10)});
  EXPECT_EQ(queue.next()->id, 11u);
  EXPECT_EQ(queue.next()->id, 32u);
  EXPECT_EQ(queue.next()->id, 12u);
}

TEST(RequestQueue, WeightsShareTokens) {
  RequestQueue queue(1000, QueueOrder::kFirstCome);
  for (uint64_t id = 0; id < 200; ++id) {
    queue.push({request_of(1, 1000 + id, 7, 1)});
    queue.push({request_of(2, 2000 + id, 7, 3)});
  }
  std::map<uint64_t, int> given;
  for (int i = 0; i < 100; ++i) ++given[queue.next()->caller.id];
  EXPECT_NEAR(given[2], 75, 1);
}

// As Sheng et al. bound it: of two that always wait, neither has had more than the other but for
// one request.
TEST(RequestQueue, SharesOfTheBusyStayTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    RequestQueue queue(100000, QueueOrder::kFirstCome);
    std::map<uint64_t, double> served;
    uint64_t id = 0;
    for (uint64_t caller = 1; caller <= 4; ++caller)
      for (int i = 0; i < 300; ++i)
        queue.push({request_of(caller, ++id, 1 + random() % (10 * caller))});
    std::vector<uint64_t> running;
    std::map<uint64_t, uint64_t> caller_of;
    for (int step = 0; step < 600; ++step) {
      const auto next = queue.next();
      ASSERT_TRUE(next);
      if (random() % 4 == 0) {
        queue.take_back(*next);
        continue;
      }
      served[next->caller.id] += static_cast<double>(next->prompt.size());
      const int64_t tokens = static_cast<int64_t>(random() % 20);
      queue.brought(next->id, tokens);
      served[next->caller.id] += 2 * static_cast<double>(tokens);
      queue.ended(next->id);
      const auto [least, most] = std::minmax_element(
          served.begin(), served.end(), [](auto& a, auto& b) { return a.second < b.second; });
      if (served.size() == 4) ASSERT_LE(most->second - least->second, 40 + 40);
    }
  }
}

TEST(RequestQueue, WhatWasCancelledDoesNotComeBack) {
  RequestQueue queue(5, QueueOrder::kFirstCome);
  queue.push({request(1), request(2)});
  auto first = *queue.next();
  EXPECT_FALSE(queue.cancel(1));
  EXPECT_FALSE(queue.put_back(std::move(first)));
  EXPECT_TRUE(queue.take_cancelled().empty()) << "whoever put it back tells its end";
  auto second = *queue.next();
  EXPECT_TRUE(queue.put_back(std::move(second)));
  EXPECT_TRUE(queue.cancel(2)) << "it waits again";
  EXPECT_FALSE(queue.next());
}

TEST(RequestQueue, IsBoundedAllOrNone) {
  RequestQueue queue(2, QueueOrder::kFirstCome);
  EXPECT_EQ(queue.push({request(1)}), RequestQueue::Outcome::kTaken);
  EXPECT_EQ(queue.push({request(2), request(3)}), RequestQueue::Outcome::kFull);
  EXPECT_EQ(queue.waiting(), 1);
  EXPECT_EQ(queue.push({request(4), request(5)}, /*is_bound=*/true), RequestQueue::Outcome::kTaken);
  EXPECT_EQ(queue.waiting(), 3);
}

TEST(RequestQueue, CancelsWhatWaitsAndPassesOnTheRest) {
  RequestQueue queue(5, QueueOrder::kFirstCome);
  queue.push({request(1), request(2)});
  EXPECT_EQ(queue.next()->id, 1u);
  EXPECT_TRUE(queue.cancel(2));
  EXPECT_FALSE(queue.cancel(1));
  EXPECT_FALSE(queue.next());
  EXPECT_EQ(queue.take_cancelled(), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(queue.take_cancelled().empty());
}

TEST(RequestQueue, ClosedItGivesOutWhatItHas) {
  RequestQueue queue(5, QueueOrder::kFirstCome);
  queue.push({request(1)});
  queue.close();
  EXPECT_EQ(queue.push({request(2)}), RequestQueue::Outcome::kClosed);
  EXPECT_TRUE(queue.is_open());
  EXPECT_EQ(queue.next()->id, 1u);
  EXPECT_FALSE(queue.is_open());
  queue.wait({});  // returns at once
}

TEST(RequestQueue, WaitingEndsWithAPushACloseOrAStop) {
  RequestQueue queue(5, QueueOrder::kFirstCome);
  {
    std::jthread pusher([&] { queue.push({request(1)}); });
    queue.wait({});
    EXPECT_TRUE(queue.next());
  }
  std::stop_source stop;
  {
    std::jthread stopper([&] { stop.request_stop(); });
    queue.wait(stop.get_token());
  }
  std::jthread closer([&] { queue.close(); });
  queue.wait({});
  EXPECT_FALSE(queue.is_open());
}

}  // namespace
}  // namespace sluice::serve
