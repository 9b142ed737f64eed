#pragma once
// Which KV pages are free and who has them. A page here is a slot number that means the same place
// in every layer; its bytes are in memory or in the offload file. Pages are reserved for a
// sequence's whole length when it is admitted, so a running sequence never lacks one. Pure
// accounting: no bytes. Not thread safe.
#include <cstdint>
#include <optional>
#include <vector>

namespace sluice {

struct PageRef {
  bool is_on_disk = false;
  int32_t slot = 0;  ///< in its tier, 0..pages-1
};

/// Pages of one sequence, in order of position: page p holds tokens [p * page_tokens, (p + 1) *
/// page_tokens).
using PageTable = std::vector<PageRef>;

class PagePool {
 public:
  PagePool(int64_t memory_pages, int64_t disk_pages);

  /// `count` pages, taken from both tiers in the proportion of their sizes (to within one page), or
  /// nothing when fewer are free.
  std::optional<PageTable> reserve(int64_t count);
  /// Gives all pages of `table` back and empties it.
  void release(PageTable& table);

  int64_t free_pages() const noexcept {
    return static_cast<int64_t>(free_memory_.size() + free_disk_.size());
  }
  int64_t total_pages() const noexcept { return memory_pages_ + disk_pages_; }
  int64_t peak_used() const noexcept { return peak_used_; }

 private:
  int64_t memory_pages_;
  int64_t disk_pages_;
  std::vector<int32_t> free_memory_;  ///< last one first
  std::vector<int32_t> free_disk_;
  int64_t peak_used_ = 0;
};

}  // namespace sluice
