#include "io/async/request_queue.h"

#include <gtest/gtest.h>

#include <random>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::io {
namespace {

std::shared_ptr<Group> group_of(Direction direction, const std::vector<int64_t>& sizes) {
  static std::byte memory[1];  // never touched: the queue moves no bytes
  auto group = std::make_shared<Group>();
  group->direction = direction;
  for (const int64_t bytes : sizes) {
    group->pieces.push_back({std::make_shared<OpenFile>(), 0, bytes, bytes, memory});
  }
  return group;
}

std::exception_ptr some_error() {
  return std::make_exception_ptr(Error(ErrorKind::kFile, "planned"));
}

TEST(RequestQueue, IssuesGroupsInOrder) {
  RequestQueue queue({4096, kMiB, 100});
  const auto first = group_of(Direction::kRead, {10000, 1});
  const auto second = group_of(Direction::kRead, {4096});
  queue.push(first);
  queue.push(second);
  std::vector<std::pair<Group*, int64_t>> seen;
  while (auto request = queue.next()) seen.emplace_back(request->group.get(), request->bytes);
  const std::vector<std::pair<Group*, int64_t>> expected{{first.get(), 4096},
                                                         {first.get(), 4096},
                                                         {first.get(), 1808},
                                                         {first.get(), 1},
                                                         {second.get(), 4096}};
  EXPECT_EQ(seen, expected);
}

TEST(RequestQueue, HoldsTheBoundsOfEachDirection) {
  RequestQueue queue({4096, 10000, 100});
  queue.push(group_of(Direction::kRead, {40960}));
  queue.push(group_of(Direction::kWrite, {40960}));
  std::vector<Request> requests;
  while (auto request = queue.next()) requests.push_back(*request);
  ASSERT_EQ(requests.size(), 4u);  // two reads and two writes: writes do not wait behind reads
  EXPECT_NE(requests[0].direction, requests[1].direction);
  EXPECT_FALSE(queue.can_issue());
  queue.end(requests[0], 4096, nullptr);
  EXPECT_TRUE(queue.can_issue());
  EXPECT_EQ(queue.next()->direction, requests[0].direction);
  EXPECT_FALSE(queue.next());
  EXPECT_EQ(queue.counters().max_bytes_in_flight, 4 * 4096);

  RequestQueue few({4096, kMiB, 3});
  few.push(group_of(Direction::kWrite, std::vector<int64_t>(10, 1)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(few.next());
  EXPECT_FALSE(few.next());
}

TEST(RequestQueue, AlwaysLetsOneRequestThrough) {
  RequestQueue queue({8192, 100, 0});
  queue.push(group_of(Direction::kRead, {8192}));
  EXPECT_TRUE(queue.next());
}

TEST(RequestQueue, GroupsOfNothingAreFinishedAtOnce) {
  RequestQueue queue({4096, kMiB, 8});
  queue.push(group_of(Direction::kRead, {}));
  queue.push(group_of(Direction::kWrite, {0, 0}));
  EXPECT_FALSE(queue.next());
  EXPECT_FALSE(queue.is_idle());
  EXPECT_EQ(queue.take_finished().size(), 2u);
  EXPECT_TRUE(queue.is_idle());
}

TEST(RequestQueue, RequiredBytesAreThoseOfEachRequest) {
  RequestQueue queue({4096, kMiB, 8});
  auto group = group_of(Direction::kRead, {16384});
  group->pieces[0].required_bytes = 5000;
  queue.push(group);
  std::vector<int64_t> required;
  while (auto request = queue.next()) required.push_back(request->required_bytes);
  EXPECT_EQ(required, (std::vector<int64_t>{4096, 904, 0, 0}));
}

TEST(RequestQueue, CountsTimeOnlyWhileSomethingIsInFlight) {
  RequestQueue queue({4096, kMiB, 8});
  EXPECT_EQ(queue.counters().read_busy_seconds, 0);
  queue.push(group_of(Direction::kRead, {4096}));
  EXPECT_EQ(queue.counters().read_busy_seconds, 0);
  const Request request = *queue.next();
  const double before = queue.counters().read_busy_seconds;
  queue.end(request, 4096, nullptr);
  const double after = queue.counters().read_busy_seconds;
  EXPECT_GE(after, before);
  EXPECT_EQ(queue.counters().read_busy_seconds, after);
  EXPECT_EQ(queue.counters().write_busy_seconds, 0);
}

/// Random pushes, issues, ends, failures and cancels: every group must come out exactly once, with
/// nothing in flight.
TEST(RequestQueue, EveryGroupEndsExactlyOnceWhateverHappens) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    RequestQueue queue({4096, 5 * 4096, static_cast<int>(1 + below(6))});
    std::vector<Request> in_flight;
    int64_t pushed = 0;
    int64_t finished = 0;
    const auto collect = [&] {
      for (const auto& group : queue.take_finished()) {
        ++finished;
        EXPECT_EQ(group->in_flight, 0);
        EXPECT_FALSE(group->is_queued);
        for (const Request& request : in_flight) EXPECT_NE(request.group, group);
      }
    };
    const auto end_one = [&] {
      const auto at = in_flight.begin() + static_cast<int64_t>(below(in_flight.size()));
      const Request request = *at;
      in_flight.erase(at);
      queue.end(request, request.bytes, below(10) == 0 ? some_error() : nullptr);
    };
    for (int step = 0; step < 300; ++step) {
      const uint64_t choice = below(20);
      if (choice < 5) {
        std::vector<int64_t> sizes(below(4));
        for (int64_t& bytes : sizes) bytes = static_cast<int64_t>(below(20000));
        queue.push(group_of(below(2) == 0 ? Direction::kRead : Direction::kWrite, sizes));
        ++pushed;
      } else if (choice < 12) {
        if (auto request = queue.next()) in_flight.push_back(*request);
      } else if (choice < 19) {
        if (!in_flight.empty()) end_one();
      } else {
        queue.cancel(Error(ErrorKind::kCancelled, "planned"));
      }
      collect();
    }
    while (!queue.is_idle()) {
      while (auto request = queue.next()) in_flight.push_back(*request);
      if (!in_flight.empty()) end_one();
      collect();
    }
    EXPECT_EQ(finished, pushed);
    EXPECT_TRUE(in_flight.empty());
  }
}

}  // namespace
}  // namespace sluice::io
