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
}  // namespace

PagePool::PagePool(int64_t memory_pages, int64_t disk_pages)
    : memory_pages_(memory_pages),
      disk_pages_(disk_pages),
      free_memory_(all_slots(memory_pages)),
      free_disk_(all_slots(disk_pages)) {}

std::optional<PageTable> PagePool::reserve(int64_t count) {
  if (count > free_pages()) return std::nullopt;
  PageTable table;
  table.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // The tier of which the larger share is free: both fill evenly.
    const bool take_disk =
        static_cast<int64_t>(free_disk_.size()) * std::max<int64_t>(memory_pages_, 1) >
        static_cast<int64_t>(free_memory_.size()) * std::max<int64_t>(disk_pages_, 1);
    std::vector<int32_t>& free = take_disk ? free_disk_ : free_memory_;
    SLUICE_ASSERT(!free.empty(), "the fuller tier has a free page");
    table.push_back({take_disk, free.back()});
    free.pop_back();
  }
  peak_used_ = std::max(peak_used_, total_pages() - free_pages());
  return table;
}

void PagePool::release(PageTable& table) {
  for (const PageRef& page : table)
    (page.is_on_disk ? free_disk_ : free_memory_).push_back(page.slot);
  table.clear();
  SLUICE_ASSERT(free_pages() <= total_pages(), "a page was given back twice");
}

}  // namespace sluice
