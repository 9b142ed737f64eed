#pragma once
// Pages that hold the KV of known beginnings, kept after their sequences have ended: a tree whose
// nodes are full pages of tokens. Equal tokens at equal positions have equal KV, so a new sequence
// takes over the pages of its longest known beginning and computes only the rest. Tokens are
// compared, not only their hashes. Pages nobody else owns are given up, least recently used first,
// when the pool runs dry. Where there is swap space and copying a page costs less than computing it
// again, its tokens are kept there and come back into a page of the pool when they are asked for:
// so what was preempted is resumed, too. Of layers that see a window, a beginning is known where
// the pages that its next token sees are there; pages before them may be gone. Not thread safe.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/cache/page_pool.h"

namespace sluice {

/// Tokens, and whose weights compute them: 0 of the model itself, above 0 of an adapter's. What
/// different weights have computed is never taken for each other.
struct Beginning {
  Beginning(std::span<const int32_t> all,
            int64_t by = 0) noexcept  // NOLINT(google-explicit-constructor)
      : tokens(all), weights(by) {}
  Beginning(const std::vector<int32_t>& all,
            int64_t by = 0) noexcept  // NOLINT(google-explicit-constructor)
      : tokens(all), weights(by) {}

  std::span<const int32_t> tokens;
  int64_t weights;
};

class PrefixCache {
 public:
  /// How far a sequence's pages are known to the cache.
  struct Cursor {
    int64_t node = 0;   ///< 0: the root; -1: lost, its beginning was given up
    int64_t pages = 0;  ///< of the sequence, from its first
  };

  /// `pool` outlives the cache. `page_tokens` >= 1. `swap_pages`: that fit into the swap space.
  /// `window`: positions that a token sees, itself included; 0: all before it.
  PrefixCache(PagePool& pool, int64_t page_tokens, int64_t swap_pages = 0, int64_t window = 0);
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The pages of the longest known beginning of `tokens`, at most `most_pages`; the caller becomes
  /// an owner of each and releases them as its own. `cursor` is set for insert(). Pages in the swap
  /// space get one of the pool, as far as there is room (others may be given up for it). All can be
  /// one sequence's on `side` (PagePool::may_join): where they can't, the beginning ends. With a
  /// window pages are gone that the next token does not see.
  PageTable match(const Beginning& tokens, int64_t most_pages, Cursor& cursor,
                  PageSide side = PageSide::kAny);

  /// Keeps the pages of `table` that are full with the first `computed` of `tokens`, with a window
  /// those that are not gone. Where another sequence brought the same tokens before, its page stays
  /// the known one.
  void insert(const Beginning& tokens, int64_t computed, const PageTable& table, Cursor& cursor);

  /// Gives up the page of the node that a cursor is at; pages before and behind it stay known. Only
  /// with a window.
  void forget(const Cursor& cursor);

  /// How many of the pages that match() would find lie in the pool, and how many in the swap space.
  struct Found {
    int64_t resident = 0, idle = 0, swapped = 0;  ///< idle: of the resident, those nobody else owns
    int64_t pages = 0;                            ///< of the beginning, those gone too
  };
  Found find(const Beginning& tokens, int64_t most_pages, PageSide side = PageSide::kAny) const;

  /// Gives up the least recently used page that nobody else owns and no other page follows. False:
  /// there is none.
  bool evict_one();
  /// What has to be copied, in this order, before the next pass; and nothing the next time.
  std::vector<PageCopy> take_copies() { return std::exchange(copies_, {}); }
  /// Seconds to copy a page to or from the swap space, and to compute one; as measured.
  void set_costs(double copy, double compute) noexcept {
    copy_seconds_ = copy;
    compute_seconds_ = compute;
  }
  void clear();

  /// Pages that nobody else owns: as good as free.
  int64_t idle_pages() const noexcept { return pool_.idle_pages(); }
  int64_t pages() const noexcept { return static_cast<int64_t>(nodes_.size()); }
  int64_t saved_pages() const noexcept { return saved_pages_; }        ///< to the swap space
  int64_t restored_pages() const noexcept { return restored_pages_; }  ///< from there
  /// Tokens that match() was asked about, and those it knew.
  int64_t queried_tokens() const noexcept { return queried_tokens_; }
  int64_t hit_tokens() const noexcept { return hit_tokens_; }

 private:
  // Parent and tokens of the page; of a first page, which has none, the weights, negative.
  using Key = std::pair<int64_t, std::vector<int32_t>>;
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept;
  };
  struct Node {
    const Key* key = nullptr;
    std::optional<PageRef> page;  // in the pool: the node is resident
    int32_t slot = -1;            // in the swap space
    int64_t resident_children = 0;
    int64_t first_child = 0;         // 0: none
    int64_t next = 0, previous = 0;  // of the same parent; 0: none. The root's have neither
    int64_t used = 0;                // the clock when it was last asked for
  };

  Key key_at(int64_t parent, const Beginning& tokens, int64_t page) const;
  void touch(int64_t id);
  bool is_copy_cheaper() const noexcept {
    return swap_pages_ > 0 && 2 * copy_seconds_ <= compute_seconds_;
  }
  // The known pages of a beginning, of which those from `first` on are there or come back.
  struct Path {
    std::vector<int64_t> nodes;
    int64_t first = 0;
  };
  Path path_of(const Beginning& tokens, int64_t most_pages, PageSide side) const;
  void end_at_a_window(Path& path, PageSide side) const;
  bool is_there(const Node& node, PageSide side) const;
  int64_t first_seen(int64_t pages) const noexcept;
  void make_resident(int64_t id, const PageRef& page);
  void make_absent(int64_t id);
  bool restore(int64_t id, PageSide side);
  void prune(int64_t id);
  bool save(int64_t id);
  void free_slot(int64_t id);
  bool free_older_slot(int64_t used);
  void link(int64_t id, int64_t parent);
  void unlink(int64_t id);
  void drop(int64_t id);
  void drop_with_children(int64_t id);

  PagePool& pool_;
  int64_t page_tokens_;
  int64_t window_;
  std::unordered_map<Key, int64_t, KeyHash> ids_;
  std::unordered_map<int64_t, Node> nodes_;
  // (used, id) of resident nodes without resident children (with a window: of all resident ones),
  // and of nodes in the swap space.
  std::set<std::pair<int64_t, int64_t>> leaves_, swapped_;
  int64_t swap_pages_;
  std::vector<int32_t> free_slots_;
  std::vector<PageCopy> copies_;
  double copy_seconds_ = 0;  // not measured yet: worth a try
  double compute_seconds_ = 0;
  int64_t saved_pages_ = 0;
  int64_t restored_pages_ = 0;
  int64_t next_id_ = 1;
  int64_t clock_ = 0;
  int64_t queried_tokens_ = 0;
  int64_t hit_tokens_ = 0;
};

}  // namespace sluice
