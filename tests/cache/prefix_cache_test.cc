#include "src/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sluice {
namespace {

std::vector<int32_t> tokens_of(std::initializer_list<int32_t> ids) { return ids; }

TEST(PrefixCache, FindsTheLongestKnownBeginning) {
  PagePool pool({8, 0, 0}, false);
  PrefixCache cache(pool, 2);
  PageTable first = *pool.reserve(3);
  PrefixCache::Cursor cursor;
  const auto known = tokens_of({1, 2, 3, 4, 5, 6});
  cache.insert(known, 5, first, cursor);  // the third page is not full yet
  EXPECT_EQ(cache.pages(), 2);
  PrefixCache::Cursor other;
  PageTable found = cache.match(tokens_of({1, 2, 3, 4, 5, 6}), 9, other);
  EXPECT_EQ(found, PageTable(first.begin(), first.begin() + 2));
  EXPECT_EQ(pool.owners(found[0]), 3);  // the sequence, the cache, the new one
  pool.release(found);
  found = cache.match(tokens_of({1, 2, 3, 9}), 9, other);
  EXPECT_EQ(found.size(), 1u);
  pool.release(found);
  EXPECT_TRUE(cache.match(tokens_of({2, 1, 3, 4}), 9, other).empty());
  EXPECT_TRUE(cache.match(tokens_of({3, 4}), 9, other).empty())
      << "equal tokens elsewhere are not the same";
  EXPECT_EQ(cache.match(tokens_of({1, 2, 3, 4}), 0, other).size(), 0u);
  pool.release(first);
  EXPECT_EQ(pool.free_pages(), 6);
  cache.clear();
  EXPECT_EQ(pool.free_pages(), 8);
}

// A page's "bytes": what the copies move about. Every page that match() gives holds the tokens
// asked for, wherever they were meanwhile.
TEST(PrefixCache, WhatComesBackFromTheSwapSpaceIsWhatWentThere) {
  std::mt19937 random(6);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int64_t restored = 0;
  for (int round = 0; round < 60; ++round) {
    const int64_t pool_pages = pick(3, 9);
    PagePool pool({pool_pages, 0, 0}, false);
    PrefixCache cache(pool, 2, pick(0, 8));
    std::map<std::pair<int, int32_t>, std::vector<int32_t>> bytes;  // by tier and slot
    const auto key = [](const PageRef& page) {
      return std::pair(static_cast<int>(page.tier), page.slot);
    };
    for (int step = 0; step < 150; ++step) {
      if (step % 40 == 39) cache.set_costs(pick(0, 1), pick(0, 2));
      std::vector<int32_t> tokens;
      const int length = 2 * pick(1, static_cast<int>(pool_pages) - 1);
      for (int i = 0; i < length; ++i) tokens.push_back(pick(0, 1));
      PrefixCache::Cursor cursor;
      const auto expected = cache.find(tokens, length / 2);
      PageTable table = cache.match(tokens, length / 2, cursor);
      EXPECT_LE(static_cast<int64_t>(table.size()), expected.resident + expected.swapped);
      EXPECT_GE(static_cast<int64_t>(table.size()), std::min<int64_t>(expected.resident, 1));
      const size_t known = table.size();
      while (!pool.extend(table, length / 2 - static_cast<int64_t>(known)))
        ASSERT_TRUE(cache.evict_one()) << "one sequence fits the pool";
      for (const PageCopy& copy : cache.take_copies())
        bytes[key(copy.to)] = bytes.at(key(copy.from));
      for (size_t page = 0; page < table.size(); ++page) {
        const std::vector<int32_t> prefix(tokens.begin(),
                                          tokens.begin() + 2 * static_cast<int>(page) + 2);
        if (page < known)
          ASSERT_EQ(bytes.at(key(table[page])), prefix) << "page " << page;
        else
          bytes[key(table[page])] = prefix;
      }
      cache.insert(tokens, length, table, cursor);
      pool.release(table);
    }
    restored += cache.restored_pages();
    EXPECT_LE(cache.restored_pages(), cache.saved_pages() * 40);
    cache.clear();
    EXPECT_EQ(pool.free_pages(), pool_pages);
  }
  EXPECT_GT(restored, 100);
}

// Its later pages are in the swap space when a long beginning is given up: they go with it.
TEST(PrefixCache, ALongBeginningGoesWithAllThatFollows) {
  constexpr int32_t kPages = 30000;
  PagePool pool({kPages, 0, 0}, false);
  PrefixCache cache(pool, 1, kPages);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kPages; ++i) tokens.push_back(i % 7);
  PageTable table = *pool.reserve(kPages);
  PrefixCache::Cursor cursor;
  cache.insert(tokens, kPages, table, cursor);
  pool.release(table);
  cache.set_costs(0, 1);
  for (int32_t i = 0; i + 1 < kPages; ++i) ASSERT_TRUE(cache.evict_one());
  EXPECT_EQ(cache.saved_pages(), kPages - 1);
  EXPECT_EQ(cache.pages(), kPages);
  cache.set_costs(1, 0);  // copying no longer pays: the first page is given up
  EXPECT_TRUE(cache.evict_one());
  EXPECT_EQ(cache.pages(), 0);
  EXPECT_EQ(pool.free_pages(), kPages);
  EXPECT_FALSE(cache.evict_one());
}

// Where attention below the device runs on the host, a sequence's pages are all there or all on the
// device; what different sequences have left may not be mixed.
TEST(PrefixCache, NeverMixesPagesThatASequenceCanNotHaveTogether) {
  std::mt19937 random(12);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int64_t found = 0, stopped = 0;
  for (int round = 0; round < 40; ++round) {
    PagePool pool({pick(4, 8), pick(2, 6), pick(0, 4)}, true);
    PrefixCache cache(pool, 1, pick(0, 6));
    std::vector<std::pair<PageTable, PrefixCache::Cursor>> running;
    for (int step = 0; step < 200; ++step) {
      if (!running.empty() && pick(0, 2) == 0) {
        pool.release(running.back().first);
        running.pop_back();
        continue;
      }
      std::vector<int32_t> tokens(static_cast<size_t>(pick(1, 4)));
      for (int32_t& token : tokens) token = pick(0, 1);
      PrefixCache::Cursor cursor;
      const auto length = static_cast<int64_t>(tokens.size());
      PageTable table = pick(0, 1) == 0 ? PageTable{} : cache.match(tokens, length, cursor);
      found += static_cast<int64_t>(table.size());
      const auto known = cache.find(tokens, length);
      stopped += known.resident + known.swapped > 0 && table.empty();
      bool is_placed = false;
      while (!(is_placed = pool.extend(table, length - static_cast<int64_t>(table.size()))))
        if (!cache.evict_one()) break;
      cache.take_copies();
      for (const PageRef& page : table) {
        ASSERT_NE(page.tier, PageTier::kSwap);
        ASSERT_EQ(page.tier == PageTier::kCompute, table.front().tier == PageTier::kCompute);
      }
      if (!is_placed) {
        pool.release(table);
        continue;
      }
      cache.insert(tokens, length, table, cursor);
      running.emplace_back(std::move(table), cursor);
    }
    for (auto& [table, cursor] : running) pool.release(table);
    cache.clear();
    EXPECT_EQ(pool.free_pages(), pool.total_pages());
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(stopped, 0);
}

TEST(PrefixCache, GivesUpTheLeastRecentlyUsedLeafThatNobodyElseOwns) {
  PagePool pool({4, 0, 0}, false);
  PrefixCache cache(pool, 1);
  std::map<int32_t, PageRef> page_of;
  for (int32_t token : {10, 20, 30}) {
    PageTable table = *pool.reserve(1);
    page_of[token] = table[0];
    PrefixCache::Cursor cursor;
    cache.insert(std::vector<int32_t>{token}, 1, table, cursor);
    pool.release(table);
  }
  PrefixCache::Cursor cursor;
  PageTable held = cache.match(tokens_of({10}), 1, cursor);  // in use
  PageTable touched = cache.match(tokens_of({20}), 1, cursor);
  pool.release(touched);
  EXPECT_TRUE(cache.evict_one());  // 30: used before 20 was
  EXPECT_EQ(pool.owners(page_of[30]), 0);
  EXPECT_TRUE(cache.evict_one());
  EXPECT_EQ(pool.owners(page_of[20]), 0);
  EXPECT_FALSE(cache.evict_one());
  pool.release(held);
  EXPECT_TRUE(cache.evict_one());
  EXPECT_EQ(pool.free_pages(), 4);
}

// Sequences that come, grow, and go, over a small vocabulary so that they begin alike, against a
// plain map from beginnings to pages: what is found holds the tokens asked for, and no page is
// lost.
TEST(PrefixCache, RandomSequencesFindWhatWasComputedForTheirTokens) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const int64_t page_tokens = 1 + random() % 3;
    PagePool pool({12, 0, random() % 2 == 0 ? 0 : 6}, false);
    PrefixCache cache(pool, page_tokens);
    std::map<std::pair<int, int32_t>, std::vector<int32_t>>
        content;  // page: all tokens up to its end
    struct Held {
      std::vector<int32_t> tokens;
      PageTable table;
      PrefixCache::Cursor cursor;
    };
    std::vector<Held> running;
    for (int step = 0; step < 500; ++step) {
      if (random() % 2 == 0) {
        Held held;
        for (size_t i = 1 + random() % 9; i > 0; --i) held.tokens.push_back(random() % 2);
        const auto length = static_cast<int64_t>(held.tokens.size());
        held.table = cache.match(held.tokens, (length - 1) / page_tokens, held.cursor);
        for (size_t page = 0; page < held.table.size(); ++page) {
          const PageRef& ref = held.table[page];
          const std::vector<int32_t> expected(
              held.tokens.begin(),
              held.tokens.begin() + static_cast<std::ptrdiff_t>((page + 1) * page_tokens));
          ASSERT_EQ((content[{static_cast<int>(ref.tier), ref.slot}]), expected);
        }
        const int64_t missing =
            (length + page_tokens - 1) / page_tokens - static_cast<int64_t>(held.table.size());
        bool is_placed = true;
        while (is_placed && !pool.extend(held.table, missing)) is_placed = cache.evict_one();
        if (!is_placed) {
          pool.release(held.table);
          continue;
        }
        for (int64_t page = held.cursor.pages; page < static_cast<int64_t>(held.table.size());
             ++page) {
          const PageRef& ref = held.table[static_cast<size_t>(page)];
          ASSERT_EQ(pool.owners(ref), 1) << "a page that is written belongs to one sequence";
          const int64_t end = std::min(length, (page + 1) * page_tokens);
          content[{static_cast<int>(ref.tier), ref.slot}] = {held.tokens.begin(),
                                                             held.tokens.begin() + end};
        }
        cache.insert(held.tokens, length, held.table, held.cursor);
        running.push_back(std::move(held));
      } else if (!running.empty()) {
        const size_t which = random() % running.size();
        pool.release(running[which].table);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    EXPECT_GT(cache.hit_tokens(), 0);
    for (Held& held : running) pool.release(held.table);
    cache.clear();
    EXPECT_EQ(pool.free_pages(), pool.total_pages());
  }
}

}  // namespace
}  // namespace sluice
