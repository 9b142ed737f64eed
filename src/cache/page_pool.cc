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
      free_{all_slots(pages.compute), all_slots(pages.host), all_slots(pages.disk)} {}

int64_t PagePool::free_pages() const noexcept {
  int64_t pages = 0;
  for (const auto& free : free_) pages += static_cast<int64_t>(free.size());
  return pages;
}

int64_t PagePool::most_pages_of_one() const noexcept {
  return keeps_whole_ ? std::max(pages_.compute, pages_.host + pages_.disk) : pages_.total();
}

// From the tiers first..last, always the one of which the larger share is free: they fill evenly.
std::optional<PageTable> PagePool::take(int64_t count, PageTier first, PageTier last) {
  const auto share = [&](PageTier tier) {
    return static_cast<double>(free_of(tier).size()) /
           static_cast<double>(std::max<int64_t>(pages_in(pages_, tier), 1));
  };
  int64_t free = 0;
  for (auto tier = first; tier <= last; tier = static_cast<PageTier>(static_cast<int>(tier) + 1))
    free += static_cast<int64_t>(free_of(tier).size());
  if (count > free) return std::nullopt;
  PageTable table;
  table.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    PageTier best = first;
    for (auto tier = first; tier <= last; tier = static_cast<PageTier>(static_cast<int>(tier) + 1))
      if (share(tier) > share(best)) best = tier;
    SLUICE_ASSERT(!free_of(best).empty(), "the tier with the larger free share has a free page");
    table.push_back({best, free_of(best).back()});
    free_of(best).pop_back();
  }
  return table;
}

std::optional<PageTable> PagePool::reserve(int64_t count) {
  std::optional<PageTable> table;
  if (!keeps_whole_) {
    table = take(count, PageTier::kCompute, PageTier::kDisk);
  } else {
    const int64_t lower = pages_.host + pages_.disk;
    const auto lower_free =
        static_cast<int64_t>(free_of(PageTier::kHost).size() + free_of(PageTier::kDisk).size());
    const auto upper_free = static_cast<int64_t>(free_of(PageTier::kCompute).size());
    const bool lower_first = lower_free * std::max<int64_t>(pages_.compute, 1) >
                             upper_free * std::max<int64_t>(lower, 1);
    for (const bool is_lower : {lower_first, !lower_first}) {
      table = is_lower ? take(count, PageTier::kHost, PageTier::kDisk)
                       : take(count, PageTier::kCompute, PageTier::kCompute);
      if (table) break;
    }
  }
  peak_used_ = std::max(peak_used_, total_pages() - free_pages());
  return table;
}

void PagePool::release(PageTable& table) {
  for (const PageRef& page : table) free_of(page.tier).push_back(page.slot);
  table.clear();
  SLUICE_ASSERT(free_pages() <= total_pages(), "a page was given back twice");
}

}  // namespace sluice
