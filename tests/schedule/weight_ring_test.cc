#include "src/schedule/weight_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace sluice {
namespace {

struct Region {
  int64_t index, begin, end;
};

TEST(WeightRing, LiveRegionsNeverOverlapNorLeaveTheRing) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t capacity = 1 + random() % 100;
    WeightRing ring(capacity);
    std::deque<Region> live;
    int64_t index = 0;
    for (int step = 0; step < 200; ++step) {
      if (random() % 3 == 0 && !live.empty()) {
        const int64_t before = live.front().index + random() % (index - live.front().index + 1);
        ring.release_before(before);
        while (!live.empty() && live.front().index < before) live.pop_front();
        continue;
      }
      const int64_t bytes = random() % 40;
      const auto offset = ring.place(index, bytes);
      if (live.empty()) {
        ASSERT_EQ(offset.has_value(), bytes <= capacity);
      }
      if (!offset) continue;
      if (bytes > 0) {
        const Region region{index, *offset, *offset + bytes};
        ASSERT_GE(region.begin, 0);
        ASSERT_LE(region.end, capacity);
        for (const Region& other : live)
          ASSERT_TRUE(region.end <= other.begin || other.end <= region.begin);
        live.push_back(region);
      }
      ++index;
    }
  }
}

TEST(WeightRing, WrapsAroundBehindTheOldestRegion) {
  WeightRing ring(10);
  EXPECT_EQ(ring.place(0, 6), 0);
  EXPECT_EQ(ring.place(1, 4), 6);
  EXPECT_FALSE(ring.place(2, 1));
  ring.release_before(1);
  EXPECT_EQ(ring.place(2, 5), 0);
  EXPECT_FALSE(ring.place(3, 2));
  EXPECT_EQ(ring.place(3, 1), 5);
  EXPECT_FALSE(ring.place(4, 1)) << "full";
  EXPECT_EQ(ring.place(4, 0), 0) << "nothing always fits";
}

// The generator's own way: at each step everything before it goes, then as much as fits is placed,
// at most one round ahead; sometimes a pass ends without a look beyond it.
bool next_is_always_placed(const std::vector<int64_t>& bytes, int64_t capacity,
                           std::mt19937& random) {
  WeightRing ring(capacity);
  const auto count = static_cast<int64_t>(bytes.size());
  int64_t next = 0;
  for (int64_t pass = 0; pass < 12; ++pass) {
    const bool more_follow = random() % 4 != 0;
    for (int64_t running = pass * count; running < (pass + 1) * count; ++running) {
      ring.release_before(running);
      const int64_t limit =
          std::min(running + count, (pass + 1) * count + (more_follow ? count : 0));
      while (next < limit && ring.place(next, bytes[static_cast<size_t>(next % count)])) ++next;
      if (next < std::min(running + 2, limit)) return false;
    }
  }
  return true;
}

TEST(SmallestRingBytes, TheNextSublayerAlwaysFitsBesideTheCurrentOne) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> bytes(1 + random() % 10);
    for (int64_t& size : bytes)
      size = random() % 3 == 0 ? 0 : 4096 * (1 + static_cast<int64_t>(random() % 40));
    const int64_t capacity = smallest_ring_bytes(bytes);
    ASSERT_TRUE(next_is_always_placed(bytes, capacity, random))
        << "round " << round << ", ring " << capacity / 4096 << " pages of "
        << ::testing::PrintToString(bytes);
  }
}

TEST(SmallestRingBytes, IsNotLargerThanItMustBe) {
  std::mt19937 random(4);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int64_t> bytes(2 + random() % 12);
    for (int64_t& size : bytes) size = 4096 * static_cast<int64_t>(random() % 500);
    const int64_t largest = *std::max_element(bytes.begin(), bytes.end());
    int64_t pair = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
      pair = std::max(pair, bytes[i] + bytes[(i + 1) % bytes.size()]);
    const int64_t ring = smallest_ring_bytes(bytes);
    EXPECT_GE(ring, pair);
    EXPECT_LE(ring, pair + largest + pair / 64 + 4096);
    EXPECT_EQ(ring % 4096, 0);
  }
}

TEST(SmallestRingBytes, NothingStreamedNeedsNoRing) {
  EXPECT_EQ(smallest_ring_bytes({}), 0);
  EXPECT_EQ(smallest_ring_bytes(std::vector<int64_t>{0, 0, 0}), 0);
}

TEST(SmallestRingBytes, TwoEqualHalvesNeedExactlyBoth) {
  EXPECT_EQ(smallest_ring_bytes(std::vector<int64_t>{8192, 8192}), 16384);
}

}  // namespace
}  // namespace sluice
