#include "src/serve/request_queue.h"

#include <gtest/gtest.h>

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
