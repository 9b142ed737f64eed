#include "src/schedule/weight_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
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

// The generator's own way: at each step everything before it goes, then parts are placed while they
// fit, at most one round ahead; sometimes a pass ends without a look beyond it. True when, at every
// step, the `ahead` streamed sublayers after the current one have their places.
bool always_reaches(const std::vector<std::vector<int64_t>>& sublayers, int64_t capacity, int ahead,
                    std::mt19937& random) {
  WeightRing ring(capacity);
  const auto count = static_cast<int64_t>(sublayers.size());
  int64_t next = 0;
  size_t part = 0;
  for (int64_t pass = 0; pass < 12; ++pass) {
    const bool more_follow = random() % 4 != 0;
    for (int64_t running = pass * count; running < (pass + 1) * count; ++running) {
      ring.release_before(running);
      const int64_t limit =
          std::min(running + count, (pass + 1) * count + (more_follow ? count : 0));
      for (; next < limit; ++next, part = 0) {
        const auto& parts = sublayers[static_cast<size_t>(next % count)];
        while (part < parts.size() && ring.place(next, parts[part])) ++part;
        if (part < parts.size()) break;
      }
      int64_t wanted = running;  // the last one that must have its place
      for (int left = ahead; left > 0 && wanted + 1 < limit;)
        left -= sublayers[static_cast<size_t>(++wanted % count)].empty() ? 0 : 1;
      if (next <= wanted) return false;
    }
  }
  return true;
}

TEST(WeightRingBytes, TheNextSublayersAlwaysFitBesideTheCurrentOne) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::vector<int64_t>> sublayers(1 + random() % 10);
    std::vector<int64_t> bytes;
    int64_t largest = 0;
    for (auto& parts : sublayers) {
      if (random() % 3 != 0) parts.resize(1 + random() % 5);
      for (int64_t& size : parts) {
        size = 4096 * (1 + static_cast<int64_t>(random() % 40));
        largest = std::max(largest, size);
      }
      bytes.push_back(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
    }
    const int ahead = static_cast<int>(random() % 4);
    const int64_t capacity = weight_ring_bytes(bytes, largest, ahead);
    const int64_t more = 4096 * static_cast<int64_t>(random() % 3 * (random() % 100));
    ASSERT_TRUE(always_reaches(sublayers, capacity + more, ahead, random))
        << "round " << round << ", ring " << capacity / 4096 << " pages of "
        << ::testing::PrintToString(sublayers);
  }
}

TEST(WeightRingBytes, IsTheLargestNeighboursAndOnePart) {
  EXPECT_EQ(weight_ring_bytes({}, 0, 1), 0);
  EXPECT_EQ(weight_ring_bytes(std::vector<int64_t>{0, 0, 0}, 0, 1), 0);
  const std::vector<int64_t> bytes{8192, 0, 4096, 16384};
  EXPECT_EQ(weight_ring_bytes(bytes, 4096, 0), 16384 + 4096);
  EXPECT_EQ(weight_ring_bytes(bytes, 4096, 1), 16384 + 8192 + 4096);
  EXPECT_EQ(weight_ring_bytes(bytes, 4096, 2), 16384 + 8192 + 4096 + 4096);
  EXPECT_EQ(weight_ring_bytes(bytes, 4096, 9), 16384 + 8192 + 4096 + 4096);
}

TEST(WeightPartRows, FillsAPartWithWholeGranules) {
  EXPECT_EQ(weight_part_rows(8192, 64), kWeightPartBytes / 8192);
  EXPECT_EQ(weight_part_rows(3 * 8192, 64) % 64, 0);
  EXPECT_LE(weight_part_rows(3 * 8192, 64) * 3 * 8192, kWeightPartBytes);
  EXPECT_EQ(weight_part_rows(kWeightPartBytes / 8, 64), 8) << "fewer than a granule";
  EXPECT_EQ(weight_part_rows(2 * kWeightPartBytes, 64), 1) << "a row larger than a part";
}

TEST(WeightRing, WhatWasPlacedLastCanBeDropped) {
  WeightRing ring(100);
  EXPECT_EQ(ring.place(1, 40), 0);
  EXPECT_EQ(ring.place(2, 30), 40);
  EXPECT_EQ(ring.place(3, 30), 70);
  EXPECT_EQ(ring.place(3, 1), std::nullopt);
  ring.drop_from(2);
  EXPECT_EQ(ring.place(2, 60), 40) << "the first stays where it is";
  EXPECT_EQ(ring.place(2, 1), std::nullopt);
  ring.drop_from(0);
  EXPECT_EQ(ring.place(5, 100), 0);
  ring.drop_from(6);
  EXPECT_EQ(ring.place(6, 1), std::nullopt) << "nothing of that number was there";
}

}  // namespace
}  // namespace sluice
