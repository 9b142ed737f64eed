#pragma once
// Which KV pages are free and who has them. A page here is a slot number that means the same place
// in every layer; its bytes are in memory or in the offload file. A page may have several owners
// (sequences with the same beginning, the prefix cache); it is free when the last has given it
// back. Pure accounting: no bytes. Not thread safe.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace sluice {

/// Where a page lies.
enum class PageTier : uint8_t {
  kCompute,  ///< memory of what computes: the device's, or the host's without one
  kHost,     ///< host memory below a device
  kDisk,
  kSwap  ///< pages that nobody reads there, kept to be copied back; not of the pool
};

/// One page.
struct PageRef {
  PageTier tier = PageTier::kCompute;
  int32_t slot = 0;  ///< in its tier, 0..pages-1; -1: a page that its sequence no longer has

  bool operator==(const PageRef&) const = default;
  bool is_gone() const noexcept { return slot < 0; }
};
constexpr PageRef kGonePage{PageTier::kCompute, -1};

/// Where all pages of a sequence are, where some may not be in one tier and some in another.
enum class PageSide : uint8_t { kAny, kCompute, kLower };

/// Pages by tier.
struct PageCounts {
  int64_t compute = 0;
  int64_t host = 0;
  int64_t disk = 0;
  int64_t total() const noexcept { return compute + host + disk; }
};

/// A page whose tokens are wanted in another one too.
struct PageCopy {
  PageRef from, to;

  bool operator==(const PageCopy&) const = default;
};

/// Pages of one sequence, in order of position: page p holds tokens [p * page_tokens, (p + 1) *
/// page_tokens).
using PageTable = std::vector<PageRef>;

class PagePool {
 public:
  /// With `keeps_whole`, a sequence has its pages either all in the compute tier or all below it
  /// (attention on the host).
  PagePool(const PageCounts& pages, bool keeps_whole);

  /// `count` pages, taken from the tiers in the proportion of their sizes (to within one page
  /// each), or nothing when fewer are free where they have to be.
  std::optional<PageTable> reserve(int64_t count);
  /// Appends `count` pages to those of a sequence. False: fewer are free where they have to be, and
  /// none was taken.
  bool extend(PageTable& table, int64_t count);
  /// The same on a side; kAny only where sequences are not kept whole.
  bool extend(PageTable& table, int64_t count, PageSide side);
  /// Where a sequence with this page has its others.
  PageSide side_of(const PageRef& page) const noexcept {
    if (!keeps_whole_) return PageSide::kAny;
    return page.tier == PageTier::kCompute ? PageSide::kCompute : PageSide::kLower;
  }
  /// Where a new sequence may be: the first has the larger share free.
  std::vector<PageSide> sides() const;
  /// Whether a sequence on `side` (kAny: not settled yet) can have `page` too.
  bool may_join(PageSide side, const PageRef& page) const noexcept {
    return side == PageSide::kAny || side_of(page) == side;
  }
  /// Pages that somebody may come to own at a time, beside those promised before. False: not so
  /// many can be promised there. Who keeps to promises always finds a page that is free or idle.
  bool promise(int64_t count, PageSide side);
  bool could_promise(int64_t count) const;  ///< on some side
  void take_back_promise(int64_t count, PageSide side);
  /// One more owner for a page that has one.
  void share(const PageRef& page);
  /// Takes an owner from every page of `table` and empties it.
  void release(PageTable& table);

  /// One of the page's owners keeps it only in case it is asked for again (the prefix cache).
  void keep(const PageRef& page);
  /// Before that owner releases it.
  void unkeep(const PageRef& page);

  int32_t owners(const PageRef& page) const noexcept;
  /// Pages that are only kept.
  int64_t idle_pages() const noexcept { return idle_pages_; }
  int64_t free_pages() const noexcept;
  int64_t total_pages() const noexcept { return pages_.total(); }
  /// Pages of the longest sequence that can ever be reserved.
  int64_t most_pages_of_one() const noexcept;
  int64_t peak_used() const noexcept { return peak_used_; }

 private:
  static constexpr int kTiers = 3;
  std::vector<int32_t>& free_of(PageTier tier) { return free_[static_cast<size_t>(tier)]; }
  int32_t& owners_of(const PageRef& page) {
    return owners_[static_cast<size_t>(page.tier)][static_cast<size_t>(page.slot)];
  }
  bool is_idle(const PageRef& page) {
    return owners_of(page) == 1 &&
           kept_[static_cast<size_t>(page.tier)][static_cast<size_t>(page.slot)];
  }
  bool take(PageTable& table, int64_t count, PageTier first, PageTier last);

  int64_t pages_on(PageSide side) const noexcept;

  PageCounts pages_;
  bool keeps_whole_;
  std::array<int64_t, 3> promised_{};                ///< by side
  std::array<std::vector<int32_t>, kTiers> free_;    ///< by tier, last one first
  std::array<std::vector<int32_t>, kTiers> owners_;  ///< by tier and slot
  std::array<std::vector<bool>, kTiers> kept_;       ///< likewise
  int64_t idle_pages_ = 0;
  int64_t peak_used_ = 0;
};

}  // namespace sluice
