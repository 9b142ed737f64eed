#include "src/cache/prefix_cache.h"

#include <algorithm>

namespace sluice {

PrefixCache::PrefixCache(PagePool& pool, int64_t page_tokens, int64_t swap_pages)
    : pool_(pool), page_tokens_(page_tokens), swap_pages_(swap_pages) {
  clear();
}

// FNV-1a over the words.
size_t PrefixCache::KeyHash::operator()(const Key& key) const noexcept {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3u; };
  mix(static_cast<uint64_t>(key.first));
  for (int32_t token : key.second) mix(static_cast<uint32_t>(token));
  return static_cast<size_t>(hash ^ hash >> 32);
}

PrefixCache::Key PrefixCache::key_at(int64_t parent, std::span<const int32_t> tokens,
                                     int64_t page) const {
  const auto of_page =
      tokens.subspan(static_cast<size_t>(page * page_tokens_), static_cast<size_t>(page_tokens_));
  return {parent, {of_page.begin(), of_page.end()}};
}

void PrefixCache::touch(int64_t id) {
  Node& node = nodes_.at(id);
  const std::pair before{node.used, id};
  node.used = ++clock_;
  if (leaves_.erase(before) > 0) leaves_.insert({node.used, id});
  if (swapped_.erase(before) > 0) swapped_.insert({node.used, id});
}

void PrefixCache::make_resident(int64_t id, const PageRef& page) {
  Node& node = nodes_.at(id);
  node.page = page;
  pool_.keep(page);
  if (node.resident_children == 0) leaves_.insert({node.used, id});
  if (const int64_t parent = node.key->first; parent > 0) {
    Node& above = nodes_.at(parent);
    if (above.resident_children++ == 0) leaves_.erase({above.used, parent});
  }
}

// The page goes back to the pool.
void PrefixCache::make_absent(int64_t id) {
  Node& node = nodes_.at(id);
  PageTable page{*node.page};
  node.page.reset();
  pool_.unkeep(page.front());
  pool_.release(page);
  leaves_.erase({node.used, id});
  if (const int64_t parent = node.key->first; parent > 0) {
    Node& above = nodes_.at(parent);
    if (--above.resident_children == 0 && above.page) leaves_.insert({above.used, parent});
  }
}

void PrefixCache::free_slot(int64_t id) {
  Node& node = nodes_.at(id);
  if (node.slot < 0) return;
  swapped_.erase({node.used, id});
  free_slots_.push_back(node.slot);
  node.slot = -1;
}

// Frees the slot of the least recently used page in the swap space that was last used before `used`
// and whose loss leaves no other without its beginning. False: there is none.
bool PrefixCache::free_older_slot(int64_t used) {
  for (const auto& [its_use, id] : swapped_) {
    if (its_use > used) break;
    const Node& node = nodes_.at(id);
    if (!node.page && node.first_child != 0) continue;
    if (node.page)
      free_slot(id);
    else
      drop(id);
    return true;
  }
  return false;
}

// Whether the node's tokens are in the swap space from here on.
bool PrefixCache::save(int64_t id) {
  Node& node = nodes_.at(id);
  if (node.slot >= 0) return true;
  if (!is_copy_cheaper()) return false;
  if (free_slots_.empty() && !free_older_slot(node.used)) return false;
  node.slot = free_slots_.back();
  free_slots_.pop_back();
  swapped_.insert({node.used, id});
  copies_.push_back({*node.page, {PageTier::kSwap, node.slot}});
  ++saved_pages_;
  return true;
}

// `before`: the pages that it is to follow.
bool PrefixCache::restore(int64_t id, const PageTable& before) {
  if (!is_copy_cheaper()) return false;
  // Not given up while room is made: others may be.
  const std::pair place{nodes_.at(id).used, id};
  swapped_.erase(place);
  PageTable pages(before.begin(), before.begin() + (before.empty() ? 0 : 1));
  bool has_page = pool_.extend(pages, 1);
  while (!has_page && evict_one()) has_page = pool_.extend(pages, 1);
  swapped_.insert(place);
  if (!has_page) return false;
  copies_.push_back({{PageTier::kSwap, nodes_.at(id).slot}, pages.back()});
  make_resident(id, pages.back());  // the pool's first owner is the cache
  ++restored_pages_;
  return true;
}

PageTable PrefixCache::match(std::span<const int32_t> tokens, int64_t most_pages, Cursor& cursor) {
  PageTable table;
  cursor = {};
  const int64_t full = static_cast<int64_t>(tokens.size()) / page_tokens_;
  for (int64_t page = 0; page < std::min(full, most_pages); ++page) {
    const auto found = ids_.find(key_at(cursor.node, tokens, page));
    if (found == ids_.end()) break;
    const int64_t id = found->second;
    if (!nodes_.at(id).page && !restore(id, table)) break;
    if (!pool_.may_follow(table, *nodes_.at(id).page)) break;
    cursor = {id, page + 1};
    touch(id);
    table.push_back(*nodes_.at(id).page);
    pool_.share(table.back());
  }
  queried_tokens_ += static_cast<int64_t>(tokens.size());
  hit_tokens_ += cursor.pages * page_tokens_;
  return table;
}

PrefixCache::Found PrefixCache::find(std::span<const int32_t> tokens, int64_t most_pages) const {
  Found out;
  PageTable first;
  int64_t node = 0;
  const int64_t full = static_cast<int64_t>(tokens.size()) / page_tokens_;
  for (int64_t page = 0; page < std::min(full, most_pages); ++page) {
    const auto found = ids_.find(key_at(node, tokens, page));
    if (found == ids_.end()) break;
    node = found->second;
    const Node& at = nodes_.at(node);
    if (at.page) {
      if (!pool_.may_follow(first, *at.page)) break;
      if (first.empty()) first.push_back(*at.page);
      ++out.resident;
      out.idle += pool_.owners(*at.page) == 1;
    } else if (is_copy_cheaper()) {
      ++out.swapped;
    } else {
      break;
    }
  }
  return out;
}

void PrefixCache::insert(std::span<const int32_t> tokens, int64_t computed, const PageTable& table,
                         Cursor& cursor) {
  for (; cursor.node >= 0 && cursor.pages < computed / page_tokens_; ++cursor.pages) {
    if (cursor.node > 0 && !nodes_.contains(cursor.node)) {
      cursor.node = -1;
      return;
    }
    const auto [entry, is_new] =
        ids_.try_emplace(key_at(cursor.node, tokens, cursor.pages), next_id_);
    const int64_t id = entry->second;
    if (is_new) {
      ++next_id_;
      Node& node = nodes_[id];
      node.key = &entry->first;
      node.used = ++clock_;
      link(id, cursor.node);
    } else {
      touch(id);
    }
    if (!nodes_.at(id).page) {
      const PageRef& page = table[static_cast<size_t>(cursor.pages)];
      pool_.share(page);
      make_resident(id, page);
    }
    cursor.node = id;
  }
}

void PrefixCache::link(int64_t id, int64_t parent) {
  if (parent == 0) return;
  int64_t& first = nodes_.at(parent).first_child;
  nodes_.at(id).next = first;
  if (first != 0) nodes_.at(first).previous = id;
  first = id;
}

void PrefixCache::unlink(int64_t id) {
  const Node& node = nodes_.at(id);
  if (node.next != 0) nodes_.at(node.next).previous = node.previous;
  if (node.previous != 0)
    nodes_.at(node.previous).next = node.next;
  else if (node.key->first != 0)
    nodes_.at(node.key->first).first_child = node.next;
}

// A node that no other follows.
void PrefixCache::drop(int64_t id) {
  if (nodes_.at(id).page) make_absent(id);
  free_slot(id);
  unlink(id);
  const Key* key = nodes_.at(id).key;
  nodes_.erase(id);
  ids_.erase(ids_.find(*key));
}

// None of those that follow is resident. Without recursion: a beginning may be long.
void PrefixCache::drop_with_children(int64_t id) {
  for (int64_t at = id;;) {
    const Node& node = nodes_.at(at);
    if (node.first_child != 0) {
      at = node.first_child;
      continue;
    }
    const int64_t parent = node.key->first;
    drop(at);
    if (at == id) return;
    at = parent;
  }
}

bool PrefixCache::evict_one() {
  for (const auto& [used, id] : leaves_) {
    if (pool_.owners(*nodes_.at(id).page) > 1) continue;
    if (save(id))
      make_absent(id);
    else
      drop_with_children(id);
    return true;
  }
  return false;
}

void PrefixCache::clear() {
  while (!leaves_.empty()) make_absent(leaves_.begin()->second);
  ids_.clear();
  nodes_.clear();
  swapped_.clear();
  copies_.clear();
  free_slots_.clear();
  for (int64_t slot = swap_pages_; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

}  // namespace sluice
