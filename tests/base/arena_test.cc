#include "src/base/arena.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {
namespace {

TEST(Arena, GivesZeroedPageAlignedMemory) {
  Arena arena("host", 64 * kMiB);
  for (int64_t size : {int64_t{1}, int64_t{4095}, int64_t{4097}, 2 * kMiB, 5 * kMiB + 3}) {
    const Buffer buffer = arena.allocate(size, "test");
    ASSERT_EQ(buffer.size(), size);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    if (size >= 2 * kMiB) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % static_cast<uintptr_t>(2 * kMiB), 0u);
    }
    for (std::byte value : buffer.span()) ASSERT_EQ(value, std::byte{0});
    std::memset(buffer.data(), 0x5a, static_cast<size_t>(size));
  }
}

TEST(Arena, CountsWholePagesAndTheirPeak) {
  Arena arena("host", kMiB);
  {
    const Buffer first = arena.allocate(1, "a");
    const Buffer second = arena.allocate(4097, "b");
    EXPECT_EQ(arena.used(), 3 * 4096);
  }
  EXPECT_EQ(arena.used(), 0);
  EXPECT_EQ(arena.peak(), 3 * 4096);
  const Buffer third = arena.allocate(4096, "c");
  EXPECT_EQ(arena.used(), 4096);
  EXPECT_EQ(arena.peak(), 3 * 4096);
}

TEST(Arena, TakesTheLastByteOfItsLimitAndNotOneMore) {
  Arena arena("host", 2 * 4096);
  const Buffer whole = arena.allocate(2 * 4096, "whole");
  EXPECT_EQ(arena.used(), arena.limit());
  EXPECT_THROW((void)arena.allocate(1, "more"), Error);
  EXPECT_EQ(arena.used(), arena.limit());
}

TEST(Arena, ErrorSaysWhatForHowMuchAndAgainstWhat) {
  Arena arena("host", 100 * kMiB);
  const Buffer held = arena.allocate(60 * kMiB, "weights");
  try {
    (void)arena.allocate(50 * kMiB, "KV pages");
    FAIL() << "over the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    for (const char* words :
         {"host", "100MiB", "10.0MiB short", "KV pages", "50.0MiB wanted", "60.0MiB in use"})
      EXPECT_NE(error.text().find(words), std::string::npos) << words << " in " << error.text();
    EXPECT_NE(error.mend().find("raise"), std::string::npos);
  }
}

TEST(Arena, RefusesSizesNearTheEndOfTheNumberRange) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (int64_t limit : {kMiB, kMost}) {
    Arena arena("host", limit);
    for (int64_t size : {kMost, kMost - 1, kMost - 4096, kMost - 4 * kMiB}) {
      try {
        (void)arena.allocate(size, "everything");
        FAIL() << size << " of " << limit;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kResource);
      }
      EXPECT_EQ(arena.used(), 0);
    }
  }
}

TEST(Arena, NothingWantedIsAnEmptyBuffer) {
  Arena arena("host", 0);
  const Buffer none = arena.allocate(0, "nothing");
  EXPECT_FALSE(none);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(arena.used(), 0);
}

TEST(Arena, NegativeSizeIsOurOwnMistake) {
  Arena arena("host", kMiB);
  try {
    (void)arena.allocate(-1, "negative");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
  EXPECT_THROW(arena.charge(-1, "negative"), Error);
  EXPECT_EQ(arena.used(), 0);
}

TEST(Arena, ChargesCountLikeMemory) {
  Arena arena("host", 10000);
  arena.charge(9000, "library");
  EXPECT_THROW((void)arena.allocate(1, "page"), Error);
  EXPECT_THROW(arena.charge(1001, "library"), Error);
  arena.charge(1000, "library");
  arena.discharge(10000);
  EXPECT_EQ(arena.used(), 0);
  EXPECT_EQ(arena.peak(), 10000);
}

TEST(Buffer, MovesAndGivesBackOnce) {
  Arena arena("host", kMiB);
  Buffer first = arena.allocate(4096, "a");
  std::byte* const place = first.data();
  Buffer second = std::move(first);
  EXPECT_FALSE(
      first);  // NOLINT(bugprone-use-after-move): what a moved-from buffer is, is the question
  EXPECT_EQ(first.size(), 0);
  EXPECT_EQ(second.data(), place);
  EXPECT_EQ(arena.used(), 4096);
  Buffer third = arena.allocate(8192, "b");
  third = std::move(second);
  EXPECT_EQ(third.data(), place);
  EXPECT_EQ(arena.used(), 4096);
  Buffer& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.data(), place);
  third = Buffer();
  EXPECT_EQ(arena.used(), 0);
}

TEST(Arena, RandomUseNeverExceedsTheLimitAndReturnsToZero) {
  std::mt19937 random(7);
  Arena arena("host", 300 * 4096);
  int64_t expected = 0;
  int64_t peak = 0;
  std::vector<Buffer> held;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 3 != 0) {
      const int64_t size = 1 + random() % (40 * 4096);
      const int64_t counted = round_up(size, 4096);
      if (expected + counted <= arena.limit()) {
        held.push_back(arena.allocate(size, "step"));
        expected += counted;
      } else {
        EXPECT_THROW((void)arena.allocate(size, "step"), Error);
      }
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      expected -= round_up(held[which].size(), 4096);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    peak = std::max(peak, expected);
    ASSERT_EQ(arena.used(), expected) << "step " << step;
    ASSERT_EQ(arena.peak(), peak) << "step " << step;
  }
  held.clear();
  EXPECT_EQ(arena.used(), 0);
}

TEST(Arena, ThreadsTogetherStayWithinTheLimit) {
  Arena arena("host", 64 * 4096);
  std::atomic<int> refused{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned seed = 0; seed < 4; ++seed)
      threads.emplace_back([&arena, &refused, seed] {
        std::mt19937 random(seed);
        std::vector<Buffer> held;
        for (int step = 0; step < 500; ++step) {
          if (held.size() > random() % 12) held.pop_back();
          try {
            held.push_back(arena.allocate(1 + random() % (8 * 4096), "thread"));
          } catch (const Error&) {
            ++refused;
          }
        }
      });
  }
  EXPECT_EQ(arena.used(), 0);
  EXPECT_GT(arena.peak(), 0);
  EXPECT_LE(arena.peak(), arena.limit());
}

}  // namespace
}  // namespace sluice
