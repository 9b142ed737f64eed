#include "src/cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sluice {
namespace {

struct Split {
  int64_t memory = 0;
  int64_t disk = 0;
};

Split count(const PageTable& table) {
  Split split;
  for (const PageRef& page : table) ++(page.tier == PageTier::kDisk ? split.disk : split.memory);
  return split;
}

// What the pool promises, the plainest way: a set of pages in use.
class NaivePool {
 public:
  NaivePool(int64_t memory, int64_t disk) : memory_(memory), disk_(disk) {}
  int64_t free_pages() const { return memory_ + disk_ - static_cast<int64_t>(used_.size()); }
  void take(const PageTable& table) {
    for (const PageRef& page : table) {
      ASSERT_GE(page.slot, 0);
      ASSERT_LT(page.slot, page.tier == PageTier::kDisk ? disk_ : memory_);
      ASSERT_TRUE(used_.emplace(page.tier == PageTier::kDisk, page.slot).second)
          << "slot " << page.slot << " is in use";
    }
    peak_ = std::max(peak_, static_cast<int64_t>(used_.size()));
  }
  void give(const PageTable& table) {
    for (const PageRef& page : table) used_.erase({page.tier == PageTier::kDisk, page.slot});
  }
  int64_t peak() const { return peak_; }

 private:
  int64_t memory_, disk_;
  std::set<std::pair<bool, int32_t>> used_;
  int64_t peak_ = 0;
};

TEST(PagePool, RandomUseMatchesASetOfPages) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const int64_t memory = random() % 4 == 0 ? 0 : random() % 50;
    const int64_t disk = random() % 4 == 0 ? 0 : random() % 50;
    PagePool pool({memory, 0, disk}, false);
    NaivePool naive(memory, disk);
    std::vector<PageTable> held;
    for (int step = 0; step < 400; ++step) {
      if (random() % 2 == 0) {
        const int64_t wanted = random() % 12;
        auto table = pool.reserve(wanted);
        ASSERT_EQ(table.has_value(), wanted <= naive.free_pages());
        if (table) {
          ASSERT_EQ(static_cast<int64_t>(table->size()), wanted);
          ASSERT_NO_FATAL_FAILURE(naive.take(*table));
          held.push_back(std::move(*table));
        }
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        naive.give(held.back());
        pool.release(held.back());
        ASSERT_TRUE(held.back().empty());
        held.pop_back();
      }
      ASSERT_EQ(pool.free_pages(), naive.free_pages());
      ASSERT_EQ(pool.peak_used(), naive.peak());
    }
    for (PageTable& table : held) pool.release(table);
    EXPECT_EQ(pool.free_pages(), pool.total_pages());
  }
}

TEST(PagePool, CountsThePagesThatAreOnlyKept) {
  std::mt19937 random(3);
  PagePool pool({20, 0, 10}, false);
  PageTable kept;                 // whose keeper is an owner
  std::vector<PageTable> others;  // one page each, kept or not
  for (int step = 0; step < 3000; ++step) {
    const auto pick = [&](size_t size) { return static_cast<size_t>(random()) % size; };
    switch (random() % 5) {
      case 0:
        if (auto table = pool.reserve(1)) others.push_back(std::move(*table));
        break;
      case 1:
        if (!others.empty()) {
          const PageRef page = others[pick(others.size())].front();
          if (std::find(kept.begin(), kept.end(), page) != kept.end()) break;
          pool.share(page);
          pool.keep(page);
          kept.push_back(page);
        }
        break;
      case 2:
        if (!kept.empty()) {
          others.push_back({kept[pick(kept.size())]});
          pool.share(others.back().front());
        }
        break;
      case 3:
        if (!others.empty()) {
          std::swap(others[pick(others.size())], others.back());
          pool.release(others.back());
          others.pop_back();
        }
        break;
      default:
        if (!kept.empty()) {
          std::swap(kept[pick(kept.size())], kept.back());
          PageTable one{kept.back()};
          kept.pop_back();
          pool.unkeep(one.front());
          pool.release(one);
        }
    }
    const auto idle = std::count_if(kept.begin(), kept.end(),
                                    [&](const PageRef& page) { return pool.owners(page) == 1; });
    ASSERT_EQ(pool.idle_pages(), idle) << "step " << step;
  }
}

TEST(PagePool, BothTiersFillEvenlyToWithinOnePage) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const int64_t memory = 1 + random() % 200;
    const int64_t disk = 1 + random() % 200;
    PagePool pool({memory, 0, disk}, false);
    int64_t used_memory = 0;
    int64_t used_disk = 0;
    while (pool.free_pages() > 0) {
      const int64_t wanted = std::min<int64_t>(1 + random() % 9, pool.free_pages());
      const Split split = count(*pool.reserve(wanted));
      used_memory += split.memory;
      used_disk += split.disk;
      const double even = static_cast<double>((used_memory + used_disk) * disk) /
                          static_cast<double>(memory + disk);
      ASSERT_LE(std::abs(static_cast<double>(used_disk) - even), 1.0) << memory << " + " << disk;
    }
    EXPECT_EQ(used_memory, memory);
    EXPECT_EQ(used_disk, disk);
  }
}

TEST(PagePool, OneTierAloneServesAll) {
  for (const auto& [memory, disk] : {std::pair<int64_t, int64_t>{5, 0}, {0, 5}}) {
    PagePool pool({memory, 0, disk}, false);
    auto table = pool.reserve(5);
    ASSERT_TRUE(table);
    for (const PageRef& page : *table) EXPECT_EQ(page.tier == PageTier::kDisk, disk > 0);
    EXPECT_FALSE(pool.reserve(1));
    EXPECT_TRUE(pool.reserve(0));
    pool.release(*table);
    EXPECT_TRUE(pool.reserve(5));
  }
}

TEST(PagePool, RefusesWholeRatherThanGivingLess) {
  PagePool pool({3, 0, 3}, false);
  auto table = pool.reserve(4);
  ASSERT_TRUE(table);
  EXPECT_FALSE(pool.reserve(3));
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.peak_used(), 4);
}

TEST(PagePool, KeepsASequenceWholeOnOneSideOfTheDevice) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const PageCounts pages{static_cast<int64_t>(random() % 30), static_cast<int64_t>(random() % 30),
                           static_cast<int64_t>(random() % 30)};
    PagePool pool(pages, true);
    EXPECT_EQ(pool.most_pages_of_one(), std::max(pages.compute, pages.host + pages.disk));
    int64_t upper = pages.compute;
    int64_t lower = pages.host + pages.disk;
    std::vector<PageTable> held;
    for (int step = 0; step < 60; ++step) {
      const auto wanted = static_cast<int64_t>(1 + random() % 8);
      auto table = pool.reserve(wanted);
      ASSERT_EQ(table.has_value(), wanted <= upper || wanted <= lower);
      if (!table) {
        if (held.empty()) break;
        for (PageTable& one : held) pool.release(one);
        held.clear();
        upper = pages.compute;
        lower = pages.host + pages.disk;
        continue;
      }
      const bool is_lower = table->front().tier != PageTier::kCompute;
      for (const PageRef& page : *table) ASSERT_EQ(page.tier != PageTier::kCompute, is_lower);
      (is_lower ? lower : upper) -= wanted;
      held.push_back(std::move(*table));
    }
  }
}

}  // namespace
}  // namespace sluice
