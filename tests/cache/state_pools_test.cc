#include "src/cache/state_pools.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "src/schedule/pass_cut.h"

namespace sluice {
namespace {

constexpr int64_t kPageTokens = 2;

// 1 + ceil((window + chunk - 2) / page): src/schedule/pass_cut.h.
int64_t ring_of(int64_t window, int64_t chunk) {
  return 1 + (window + chunk - 2 + kPageTokens - 1) / kPageTokens;
}

StatePools::Group group_of(int64_t pages, int64_t window, int64_t chunk, int64_t swap = 0) {
  return {{pages, 0, 0}, window, window > 0 ? ring_of(window, chunk) : 0, swap};
}

TEST(StatePools, PagesBehindTheWindowAreGivenBack) {
  const StatePools::Group groups[] = {group_of(20, 0, 1), group_of(20, 4, 1)};
  StatePools pools(groups, kPageTokens, false);
  SequencePages pages;
  pages.groups.resize(2);
  pages.cursors.resize(2);
  for (int64_t tokens = 1; tokens <= 30; ++tokens) {
    pools.pass(pages, tokens - 1);
    for (size_t group = 0; group < 2; ++group) ASSERT_TRUE(pools.grow(group, pages, tokens));
    EXPECT_EQ(pools.pool(0).free_pages(), 20 - (tokens + 1) / 2);
    EXPECT_GE(pools.pool(1).free_pages(), 20 - pools.most_pages(1, 100)) << tokens;
  }
  EXPECT_EQ(pools.pool(1).free_pages(), 20 - 2) << "token 29 sees 26..29";
  pools.release(pages);
  EXPECT_EQ(pools.used_pages(), 0);
}

TEST(StatePools, APromptsPagesAreUsedAgainWhileItIsComputed) {
  const StatePools::Group groups[] = {group_of(5, 4, 3)};
  StatePools pools(groups, kPageTokens, false);
  ASSERT_EQ(pools.most_pages(0, 100), 4);
  SequencePages pages;
  pages.groups.resize(1);
  ASSERT_TRUE(pools.grow(0, pages, 41));
  EXPECT_EQ(pages.groups[0].pages.size(), 21u);
  EXPECT_EQ(pools.pool(0).free_pages(), 1);
  for (size_t page = 4; page < 21; ++page)
    EXPECT_EQ(pages.groups[0].pages[page], pages.groups[0].pages[page - 4]);
  pools.pass(pages, 41);
  EXPECT_EQ(pages.groups[0].first, 19);
  EXPECT_EQ(pools.pool(0).free_pages(), 3) << "two hold 38..40";
  pools.release(pages);
  EXPECT_EQ(pools.pool(0).free_pages(), 5);
}

// Whose promises are kept never finds the pool empty, whatever is shared and kept meanwhile.
TEST(StatePools, PromisesAreOfPagesThatThereAre) {
  PagePool pool({6, 0, 0}, false);
  EXPECT_TRUE(pool.promise(4, PageSide::kAny));
  EXPECT_FALSE(pool.promise(3, PageSide::kAny));
  EXPECT_FALSE(pool.could_promise(3));
  EXPECT_TRUE(pool.could_promise(2));
  pool.take_back_promise(4, PageSide::kAny);
  EXPECT_TRUE(pool.promise(6, PageSide::kAny));
  PagePool sides({2, 3, 1}, true);
  EXPECT_TRUE(sides.promise(4, PageSide::kLower));
  EXPECT_FALSE(sides.promise(3, PageSide::kCompute));
  EXPECT_TRUE(sides.could_promise(2));
  EXPECT_FALSE(sides.could_promise(3));
}

// Sequences of a small vocabulary, of layers with several windows: what a page holds is followed
// by hand, through writing in chunks, taking over, the swap space and being used again. Every
// position that a token sees has to hold the tokens of its own beginning.
class Simulated {
 public:
  explicit Simulated(uint32_t seed) : random_(seed) {
    chunk_ = pick(1, 5);
    const int64_t windows[] = {0, pick(1, 9), pick(1, 9)};
    for (size_t i = 0, count = static_cast<size_t>(pick(1, 3)); i < count; ++i) {
      const int64_t window = seed % 3 == 0 ? windows[2 - i] : windows[i];
      const int64_t swap = pick(0, 3) == 0 ? 0 : pick(1, 12);
      // Of a sequence: those of its ring, and those that it took over from others.
      const int64_t least = window > 0 ? 6 * ring_of(window, chunk_) : 44;
      groups_.push_back(group_of(least + pick(0, 4), window, chunk_, swap));
    }
    if (seed % 4 == 1) {
      StatePools::Group recurrent =
          group_of(9 + pick(0, 4), 2, 1, pick(0, 3) == 0 ? 0 : pick(1, 12));
      recurrent.ring_pages = LayerState::kRecurrentPages;
      recurrent.is_recurrent = true;
      groups_.push_back(recurrent);
    }
    pools_.emplace(groups_, kPageTokens, false);
  }

  void step() {
    if (pick(0, 30) == 0) pools_->set_costs(pick(0, 2) / 2, pick(1, 2) * 6);
    if (running_.size() < 3 && pick(0, 2) == 0) start();
    if (running_.empty()) return;
    const auto which = static_cast<size_t>(pick(0, static_cast<int>(running_.size()) - 1));
    Held& held = running_[which];
    compute(held);
    if (HasFatalFailure() || held.tokens.size() < 24) return;
    pools_->release(held.pages);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void finish() {
    for (Held& held : running_) pools_->release(held.pages);
    running_.clear();
    EXPECT_EQ(pools_->used_pages(), 0);
    pools_->clear();
    for (size_t group = 0; group < groups_.size(); ++group)
      EXPECT_EQ(pools_->pool(group).free_pages(), pools_->pool(group).total_pages());
  }

  int64_t hits() const { return pools_->hit_tokens(); }
  int64_t restored() const { return pools_->restored_pages(); }

 private:
  struct Held {
    std::vector<int32_t> tokens;
    int64_t computed = 0;
    int64_t prompt = 0;
    SequencePages pages;
  };

  static bool HasFatalFailure() { return ::testing::Test::HasFatalFailure(); }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  // By group, tier and slot: what each of its positions holds, as the tokens up to it.
  using Content = std::vector<std::vector<int32_t>>;
  Content& content(size_t group, const PageRef& page) {
    Content& found = content_[{group, static_cast<int>(page.tier), page.slot}];
    found.resize(kPageTokens);
    return found;
  }

  void copy() {
    for (const auto& [group, page] : pools_->take_copies()) {
      const auto at = static_cast<size_t>(group);
      content(at, page.to) = Content(content(at, page.from));
    }
  }

  void start() {
    Held held;
    for (int64_t i = pick(1, 14); i > 0; --i) held.tokens.push_back(pick(0, 1));
    const auto length = static_cast<int64_t>(held.tokens.size());
    const int64_t known = pools_->match(held.tokens, (length - 1) / kPageTokens, held.pages);
    held.computed = known * kPageTokens;
    held.prompt = length;
    for (size_t group = 0; group < groups_.size(); ++group)
      ASSERT_EQ(std::ssize(held.pages.groups[group].pages), known);
    running_.push_back(std::move(held));
  }

  // One pass: all that is pending, in chunks.
  void compute(Held& held) {
    const auto length = static_cast<int64_t>(held.tokens.size());
    pools_->pass(held.pages, held.computed);
    for (size_t group = 0; group < groups_.size(); ++group)
      ASSERT_TRUE(pools_->grow(group, held.pages, length));
    copy();
    while (held.computed < length) {
      const int64_t end = std::min(length, held.computed + pick(int64_t{1}, chunk_));
      for (size_t group = 0; group < groups_.size(); ++group) compute(held, group, end);
      if (HasFatalFailure()) return;
      held.computed = end;
    }
    pools_->insert(held.tokens, held.computed, true, held.prompt, held.pages);
    held.tokens.push_back(pick(0, 1));
  }

  // The first place of a page stands for a recurrent state: the tokens that it has seen.
  void compute_recurrent(Held& held, size_t group, int64_t end) {
    const PageTable& table = held.pages.groups[group].pages;
    const auto beginning = [&](int64_t count) {
      return std::vector<int32_t>(held.tokens.begin(), held.tokens.begin() + count);
    };
    const auto visit = [&](int64_t page, bool has_history, bool is_changed) {
      const PageRef& ref = table.at(static_cast<size_t>(page));
      ASSERT_FALSE(ref.is_gone()) << page;
      // All is read before anything is written.
      if (has_history) {
        ASSERT_EQ(content(group, ref)[0], beginning(held.computed)) << "page " << page;
      }
      if (!is_changed) return;
      ASSERT_EQ(pools_->pool(group).owners(ref), 1) << "who writes a page is its only owner";
      content(group, ref)[0] = beginning(std::min((page + 1) * kPageTokens, end));
    };
    for_each_page({.kind = LayerState::Kind::kRecurrent, .window = 2}, held.computed,
                  end - held.computed, kPageTokens, visit);
  }

  void compute(Held& held, size_t group, int64_t end) {
    if (groups_[group].is_recurrent) return compute_recurrent(held, group, end);
    const PageTable& table = held.pages.groups[group].pages;
    const auto beginning = [&](int64_t position) {
      return std::vector<int32_t>(held.tokens.begin(), held.tokens.begin() + position + 1);
    };
    const auto at = [&](int64_t position) -> std::vector<int32_t>& {
      const PageRef& page = table.at(static_cast<size_t>(position / kPageTokens));
      EXPECT_FALSE(page.is_gone()) << position;
      return content(group, page)[static_cast<size_t>(position % kPageTokens)];
    };
    for (int64_t position = held.computed; position < end; ++position) {
      const PageRef& page = table.at(static_cast<size_t>(position / kPageTokens));
      ASSERT_EQ(pools_->pool(group).owners(page), 1) << "who writes a page is its only owner";
      at(position) = beginning(position);
    }
    const int64_t window = groups_[group].window;
    for (int64_t position = held.computed; position < end; ++position)
      for (int64_t seen = window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
           seen <= position; ++seen)
        ASSERT_EQ(at(seen), beginning(seen)) << "group " << group << ", token " << position;
  }

  std::mt19937 random_;
  int64_t chunk_ = 1;
  std::vector<StatePools::Group> groups_;
  std::optional<StatePools> pools_;
  std::vector<Held> running_;
  std::map<std::tuple<size_t, int, int32_t>, Content> content_;
};

TEST(StatePools, EveryTokenSeesWhatWasComputedForItsBeginning) {
  int64_t hits = 0, restored = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    Simulated simulated(seed);
    for (int step = 0; step < 300; ++step) {
      simulated.step();
      if (HasFatalFailure()) return;
    }
    simulated.finish();
    hits += simulated.hits();
    restored += simulated.restored();
  }
  EXPECT_GT(hits, 1500);
  EXPECT_GT(restored, 100);
}

}  // namespace
}  // namespace sluice
