#pragma once
// The pages that sequences have in every group of layers: a pool and a prefix cache a group. Of
// layers that see all of a sequence it keeps all its pages; of layers that see a window those that
// the next tokens see, and a page behind the window is used again, or given back while the sequence
// runs. Pure accounting: no bytes. Not thread safe.
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "src/cache/page_pool.h"
#include "src/cache/prefix_cache.h"

namespace sluice {

/// Pages of a sequence in one group.
struct GroupPages {
  PageTable pages;    ///< by page of tokens; those before `first` are gone
  int64_t first = 0;  ///< that it still has
};

/// Pages of a sequence.
struct SequencePages {
  std::vector<GroupPages> groups;
  std::vector<PrefixCache::Cursor> cursors;  ///< by group
  std::vector<int64_t> promised;             ///< by group, pages that it may have at a time
  PageSide side = PageSide::kAny;
};

/// A copy of a page in every layer of a group.
struct GroupCopy {
  int32_t group = 0;
  PageCopy page;

  bool operator==(const GroupCopy&) const = default;
};

class StatePools {
 public:
  struct Group {
    PageCounts pages;
    int64_t window = 0;      ///< positions that a token sees; 0: all before it
    int64_t ring_pages = 0;  ///< with a window: most_window_pages() of the longest chunk
    int64_t swap_pages = 0;  ///< of its swap space
    /// A recurrent state: a page is the state at its end, and a sequence that writes keeps the last
    /// one known, not all that it comes by.
    bool is_recurrent = false;
  };

  StatePools(std::span<const Group> groups, int64_t page_tokens, bool keeps_whole);

  size_t groups() const noexcept { return all_.size(); }
  PagePool& pool(size_t group) noexcept { return all_[group].pool; }
  const PagePool& pool(size_t group) const noexcept { return all_[group].pool; }
  bool has_window(size_t group) const noexcept { return all_[group].shape.window > 0; }
  bool has_windows() const noexcept;
  int64_t pages_for(int64_t tokens) const noexcept {
    return (tokens + page_tokens_ - 1) / page_tokens_;
  }
  /// Pages of a sequence of so many tokens at a time, at most.
  int64_t most_pages(size_t group, int64_t tokens) const noexcept;

  /// The longest beginning of `tokens`, of at most `most_pages`, that all groups know; and what
  /// PrefixCache::find() says of it in each.
  struct Found {
    int64_t pages = 0;
    std::vector<PrefixCache::Found> groups;
  };
  Found find(const Beginning& tokens, int64_t most_pages) const;
  /// Its pages, as PrefixCache::match(), into `pages`, which has none. How many pages long it is.
  int64_t match(const Beginning& tokens, int64_t most_pages, SequencePages& pages);
  /// Keeps full pages of the first `computed` of `tokens`; with `is_whole` false, of a beginning
  /// that is still being computed, none of layers with a window: their pages are used again.
  /// Behind the first `prompt` tokens a recurrent state takes the place of the one known before it.
  void insert(const Beginning& tokens, int64_t computed, bool is_whole, int64_t prompt,
              SequencePages& pages);

  /// A page for a group, or false.
  using Take = std::function<bool(PageTable& pages)>;
  /// Pages for the first `tokens` tokens in one group: what it lacks comes from `take`, or, behind
  /// a window that will have passed them by then, from those that only this sequence has. False: a
  /// page was missing, and it has what there was.
  bool grow(size_t group, GroupPages& pages, int64_t tokens, const Take& take) const;
  /// From the pool, where needed by giving up what is only kept.
  bool grow(size_t group, SequencePages& pages, int64_t tokens);
  bool extend(size_t group, PageTable& table, int64_t count, PageSide side);
  /// Gives back what no token from `computed` on sees: each page to `give`, which is its owner
  /// then.
  using Give = std::function<void(const PageRef& page)>;
  void pass(size_t group, GroupPages& pages, int64_t computed, const Give& give) const;
  void pass(SequencePages& pages, int64_t computed);
  /// Every page that the sequence has in a group, once.
  void for_each(size_t group, const GroupPages& pages, const Give& visit) const;
  /// One more owner of all of them: a copy of `pages` is another sequence's.
  void share(const SequencePages& pages);
  /// Gives all of it back, promises too.
  void release(SequencePages& pages);
  /// See PagePool::promise(). False: nothing was promised.
  bool promise(SequencePages& pages, std::span<const int64_t> counts);

  /// What has to be copied before the next pass; see PrefixCache.
  std::vector<GroupCopy> take_copies();
  void set_costs(double copy, double compute) noexcept;
  /// Forgets everything known.
  void clear();

  int64_t total_pages() const noexcept;
  int64_t used_pages() const noexcept;  ///< that sequences have
  int64_t saved_pages() const noexcept;
  int64_t restored_pages() const noexcept;
  /// Tokens that match() was asked about, and those that it knew.
  int64_t queried_tokens() const noexcept { return queried_tokens_; }
  int64_t hit_tokens() const noexcept { return hit_tokens_; }

 private:
  struct Kept {
    Kept(const Group& group, int64_t page_tokens, bool keeps_whole);
    Group shape;
    PagePool pool;
    PrefixCache known;
  };
  bool is_used_again(size_t group, const GroupPages& pages, int64_t page) const noexcept;
  int64_t longest_on(const Beginning& tokens, int64_t most_pages, PageSide side) const;
  PageSide side_for(const Beginning& tokens, int64_t most_pages) const;
  template <typename Pages>
  int64_t sum(const Pages& pages) const noexcept;  // of all groups

  int64_t page_tokens_;
  std::deque<Kept> all_;  // caches point to their pools
  int64_t queried_tokens_ = 0;
  int64_t hit_tokens_ = 0;
};

}  // namespace sluice
