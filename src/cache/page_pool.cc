#include "src/cache/page_pool.h"

#include <algorithm>
#include <numeric>

#include "src/base/error.h"

namespace sluice {

namespace {
std::vector<int32_t> all_slots(int64_t count) {
  std::vector<int32_t> slots(static_cast<size_t>(count));
  std::iota(slots.rbegin(), slots.rend(), 0);
  return slots;
}

int64_t pages_in(const PageCounts& pages, PageTier tier) {
  return tier == PageTier::kCompute ? pages.compute
         : tier == PageTier::kHost  ? pages.host
                                    : pages.disk;
}
}  // namespace

PagePool::PagePool(const PageCounts& pages, bool keeps_whole)
    : pages_(pages),
      keeps_whole_(keeps_whole),
      free_{all_slots(pages.compute), all_slots(pages.host), all_slots(pages.disk)} {
  for (size_t tier = 0; tier < free_.size(); ++tier) {
    owners_[tier].assign(free_[tier].size(), 0);
    kept_[tier].assign(free_[tier].size(), false);
  }
}

int64_t PagePool::free_pages() const noexcept {
  int64_t pages = 0;
  for (const auto& free : free_) pages += static_cast<int64_t>(free.size());
  return pages;
}

int64_t PagePool::most_pages_of_one() const noexcept {
  return keeps_whole_ ? std::max(pages_.compute, pages_.host + pages_.disk) : pages_.total();
}

// From the tiers first..last, always the one of which the larger share is free: they fill evenly.
bool PagePool::take(PageTable& table, int64_t count, PageTier first, PageTier last) {
  const auto after = [](PageTier tier) {
    return static_cast<PageTier>(static_cast<int>(tier) + 1);
  };
  const auto share = [&](PageTier tier) {
    return static_cast<double>(free_of(tier).size()) /
           static_cast<double>(std::max<int64_t>(pages_in(pages_, tier), 1));
  };
  int64_t free = 0;
  for (auto tier = first; tier <= last; tier = after(tier))
    free += static_cast<int64_t>(free_of(tier).size());
  if (count > free) return false;
  table.reserve(table.size() + static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    PageTier best = first;
    for (auto tier = first; tier <= last; tier = after(tier))
      if (share(tier) > share(best)) best = tier;
    SLUICE_ASSERT(!free_of(best).empty(), "the tier with the larger free share has a free page");
    table.push_back({best, free_of(best).back()});
    free_of(best).pop_back();
    owners_of(table.back()) = 1;
  }
  peak_used_ = std::max(peak_used_, total_pages() - free_pages());
  return true;
}

bool PagePool::extend(PageTable& table, int64_t count, PageSide side) {
  switch (side) {
    case PageSide::kCompute: return take(table, count, PageTier::kCompute, PageTier::kCompute);
    case PageSide::kLower: return take(table, count, PageTier::kHost, PageTier::kDisk);
    case PageSide::kAny: break;
  }
  return take(table, count, PageTier::kCompute, PageTier::kDisk);
}

std::vector<PageSide> PagePool::sides() const {
  if (!keeps_whole_) return {PageSide::kAny};
  const auto free_in = [&](PageTier tier) {
    return static_cast<int64_t>(free_[static_cast<size_t>(tier)].size());
  };
  const int64_t lower = pages_.host + pages_.disk;
  const int64_t lower_free = free_in(PageTier::kHost) + free_in(PageTier::kDisk);
  const bool lower_first = lower_free * std::max<int64_t>(pages_.compute, 1) >
                           free_in(PageTier::kCompute) * std::max<int64_t>(lower, 1);
  if (lower_first) return {PageSide::kLower, PageSide::kCompute};
  return {PageSide::kCompute, PageSide::kLower};
}

bool PagePool::extend(PageTable& table, int64_t count) {
  if (!table.empty()) return extend(table, count, side_of(table.front()));
  const std::vector<PageSide> sides = this->sides();
  return std::any_of(sides.begin(), sides.end(),
                     [&](PageSide side) { return extend(table, count, side); });
}

int64_t PagePool::pages_on(PageSide side) const noexcept {
  return side == PageSide::kCompute ? pages_.compute
         : side == PageSide::kLower ? pages_.host + pages_.disk
                                    : pages_.total();
}

bool PagePool::promise(int64_t count, PageSide side) {
  int64_t& promised = promised_[static_cast<size_t>(side)];
  if (promised + count > pages_on(side)) return false;
  promised += count;
  return true;
}

bool PagePool::could_promise(int64_t count) const {
  const std::vector<PageSide> sides = this->sides();
  return std::any_of(sides.begin(), sides.end(), [&](PageSide side) {
    return promised_[static_cast<size_t>(side)] + count <= pages_on(side);
  });
}

void PagePool::take_back_promise(int64_t count, PageSide side) {
  promised_[static_cast<size_t>(side)] -= count;
  SLUICE_ASSERT(promised_[static_cast<size_t>(side)] >= 0, "what is taken back was promised");
}

std::optional<PageTable> PagePool::reserve(int64_t count) {
  PageTable table;
  if (!extend(table, count)) return std::nullopt;
  return table;
}

void PagePool::share(const PageRef& page) {
  SLUICE_ASSERT(owners_of(page) > 0, "a page without an owner has nothing to share");
  idle_pages_ -= is_idle(page);
  ++owners_of(page);
}

void PagePool::keep(const PageRef& page) {
  SLUICE_ASSERT(owners_of(page) > 0, "who keeps a page owns it");
  kept_[static_cast<size_t>(page.tier)][static_cast<size_t>(page.slot)] = true;
  idle_pages_ += is_idle(page);
}

void PagePool::unkeep(const PageRef& page) {
  idle_pages_ -= is_idle(page);
  kept_[static_cast<size_t>(page.tier)][static_cast<size_t>(page.slot)] = false;
}

int32_t PagePool::owners(const PageRef& page) const noexcept {
  return owners_[static_cast<size_t>(page.tier)][static_cast<size_t>(page.slot)];
}

void PagePool::release(PageTable& table) {
  // The last first: who takes them next has neighbours in the same order, which move together.
  for (auto page = table.rbegin(); page != table.rend(); ++page) {
    SLUICE_ASSERT(owners_of(*page) > 0, "a page was given back twice");
    if (--owners_of(*page) == 0) free_of(page->tier).push_back(page->slot);
    idle_pages_ += is_idle(*page);
  }
  table.clear();
}

}  // namespace sluice
