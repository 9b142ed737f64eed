#pragma once
// Pages that hold the KV of known beginnings, kept after their sequences have ended: a tree whose
// nodes are full pages of tokens. Equal tokens at equal positions have equal KV, so a new sequence
// takes over the pages of its longest known beginning and computes only the rest. Tokens are
// compared, not only their hashes. Pages nobody else owns are given up, least recently used first,
// when the pool runs dry. Not thread safe.
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/cache/page_pool.h"

namespace sluice {

class PrefixCache {
 public:
  /// How far a sequence's pages are known to the cache.
  struct Cursor {
    int64_t node = 0;   ///< 0: the root; -1: lost, its beginning was given up
    int64_t pages = 0;  ///< of the sequence, from its first
  };

  /// `pool` outlives the cache. `page_tokens` >= 1.
  PrefixCache(PagePool& pool, int64_t page_tokens) : pool_(pool), page_tokens_(page_tokens) {}
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The pages of the longest known beginning of `tokens`, at most `most_pages`; the caller becomes
  /// an owner of each and releases them as its own. `cursor` is set for insert().
  PageTable match(std::span<const int32_t> tokens, int64_t most_pages, Cursor& cursor);

  /// Keeps the pages of `table` that are full with the first `computed` of `tokens`. Where another
  /// sequence brought the same tokens before, its page stays the known one.
  void insert(std::span<const int32_t> tokens, int64_t computed, const PageTable& table,
              Cursor& cursor);

  /// Gives up the least recently used page that nobody else owns and no other page follows. False:
  /// there is none.
  bool evict_one();
  void clear();

  /// Pages that nobody else owns: as good as free.
  int64_t idle_pages() const noexcept;
  int64_t pages() const noexcept { return static_cast<int64_t>(nodes_.size()); }
  /// Tokens that match() was asked about, and those it knew.
  int64_t queried_tokens() const noexcept { return queried_tokens_; }
  int64_t hit_tokens() const noexcept { return hit_tokens_; }

 private:
  using Key = std::pair<int64_t, std::vector<int32_t>>;  // parent, tokens of the page
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept;
  };
  struct Node {
    const Key* key = nullptr;
    PageRef page;
    int64_t children = 0;
    int64_t used = 0;  // the clock when it was last asked for
  };

  Key key_at(int64_t parent, std::span<const int32_t> tokens, int64_t page) const;
  void touch(int64_t id);
  void drop(int64_t id);

  PagePool& pool_;
  int64_t page_tokens_;
  std::unordered_map<Key, int64_t, KeyHash> ids_;
  std::unordered_map<int64_t, Node> nodes_;
  std::set<std::pair<int64_t, int64_t>> leaves_;  // (used, id) of nodes without children
  int64_t next_id_ = 1;
  int64_t clock_ = 0;
  int64_t queried_tokens_ = 0;
  int64_t hit_tokens_ = 0;
};

}  // namespace sluice
