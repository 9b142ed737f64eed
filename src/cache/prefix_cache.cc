#include "src/cache/prefix_cache.h"

#include <algorithm>

namespace sluice {

PrefixCache::PrefixCache(PagePool& pool, int64_t page_tokens, int64_t swap_pages, int64_t window)
    : pool_(pool), page_tokens_(page_tokens), window_(window), swap_pages_(swap_pages) {
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

PrefixCache::Key PrefixCache::key_at(int64_t parent, const Beginning& tokens, int64_t page) const {
  const auto of_page = tokens.tokens.subspan(static_cast<size_t>(page * page_tokens_),
                                             static_cast<size_t>(page_tokens_));
  return {parent > 0 ? parent : -tokens.weights, {of_page.begin(), of_page.end()}};
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
  if (node.resident_children == 0 || window_ > 0) leaves_.insert({node.used, id});
  if (window_ > 0) return;
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
  if (window_ > 0) return;
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
    if (window_ == 0 && !node.page && node.first_child != 0) continue;
    const int64_t freed = id;  // the entry goes with the slot
    free_slot(freed);
    prune(freed);
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

bool PrefixCache::restore(int64_t id, PageSide side) {
  if (!is_copy_cheaper()) return false;
  // Not given up while room is made: others may be.
  const std::pair place{nodes_.at(id).used, id};
  swapped_.erase(place);
  const std::vector<PageSide> sides =
      side == PageSide::kAny ? pool_.sides() : std::vector<PageSide>{side};
  PageTable pages;
  const auto has_page = [&] {
    return std::any_of(sides.begin(), sides.end(),
                       [&](PageSide one) { return pool_.extend(pages, 1, one); });
  };
  while (!has_page() && evict_one()) {
  }
  swapped_.insert(place);
  if (pages.empty()) return false;
  copies_.push_back({{PageTier::kSwap, nodes_.at(id).slot}, pages.back()});
  make_resident(id, pages.back());  // the pool's first owner is the cache
  ++restored_pages_;
  return true;
}

int64_t PrefixCache::first_seen(int64_t pages) const noexcept {
  return window_ > 0 ? std::max<int64_t>(pages * page_tokens_ - window_ + 1, 0) / page_tokens_ : 0;
}

bool PrefixCache::is_there(const Node& node, PageSide side) const {
  return node.page ? pool_.may_join(side, *node.page) : node.slot >= 0 && is_copy_cheaper();
}

// Shortens a path to where all pages that the next token sees are there.
void PrefixCache::end_at_a_window(Path& path, PageSide side) const {
  int64_t run = 0;  // of pages that are there, up to the one looked at
  int64_t longest = 0;
  for (int64_t pages = 1; pages <= std::ssize(path.nodes); ++pages) {
    const Node& node = nodes_.at(path.nodes[static_cast<size_t>(pages - 1)]);
    run = is_there(node, side) ? run + 1 : 0;
    if (run >= pages - first_seen(pages)) longest = pages;
  }
  path.nodes.resize(static_cast<size_t>(longest));
  path.first = first_seen(longest);
}

PrefixCache::Path PrefixCache::path_of(const Beginning& tokens, int64_t most_pages,
                                       PageSide side) const {
  Path path;
  int64_t node = 0;
  const int64_t full = std::ssize(tokens.tokens) / page_tokens_;
  for (int64_t page = 0; page < std::min(full, most_pages); ++page) {
    const auto found = ids_.find(key_at(node, tokens, page));
    if (found == ids_.end()) break;
    node = found->second;
    path.nodes.push_back(node);
    if (window_ > 0) continue;
    const Node& at = nodes_.at(node);
    if (!is_there(at, side)) {
      path.nodes.pop_back();
      break;
    }
    if (at.page && side == PageSide::kAny) side = pool_.side_of(*at.page);
  }
  if (window_ > 0) end_at_a_window(path, side);
  return path;
}

PageTable PrefixCache::match(const Beginning& tokens, int64_t most_pages, Cursor& cursor,
                             PageSide side) {
  const Path path = path_of(tokens, most_pages, side);
  PageTable table(static_cast<size_t>(path.first), kGonePage);
  cursor = {};
  // What is there is not given up to make room for what comes back.
  PageTable held;
  for (int64_t page = path.first; window_ > 0 && page < std::ssize(path.nodes); ++page)
    if (const Node& node = nodes_.at(path.nodes[static_cast<size_t>(page)]); node.page) {
      held.push_back(*node.page);
      pool_.share(held.back());
    }
  for (int64_t page = 0; page < std::ssize(path.nodes); ++page) {
    const int64_t id = path.nodes[static_cast<size_t>(page)];
    if (page < path.first) {
      touch(id);
      cursor = {id, page + 1};
      continue;
    }
    // Making room for a page may have taken one that was found.
    if (!nodes_.contains(id)) break;
    if (!nodes_.at(id).page && (nodes_.at(id).slot < 0 || !restore(id, side))) break;
    if (!pool_.may_join(side, *nodes_.at(id).page)) break;
    if (side == PageSide::kAny) side = pool_.side_of(*nodes_.at(id).page);
    cursor = {id, page + 1};
    touch(id);
    table.push_back(*nodes_.at(id).page);
    pool_.share(table.back());
  }
  pool_.release(held);
  queried_tokens_ += std::ssize(tokens.tokens);
  // Half a window is none.
  if (window_ > 0 && std::ssize(table) < std::ssize(path.nodes)) {
    table.erase(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(path.first));
    pool_.release(table);
    cursor = {};
  }
  hit_tokens_ += cursor.pages * page_tokens_;
  return table;
}

PrefixCache::Found PrefixCache::find(const Beginning& tokens, int64_t most_pages,
                                     PageSide side) const {
  Found out;
  const Path path = path_of(tokens, most_pages, side);
  out.pages = std::ssize(path.nodes);
  for (auto id = path.nodes.begin() + static_cast<std::ptrdiff_t>(path.first);
       id != path.nodes.end(); ++id) {
    const Node& at = nodes_.at(*id);
    out.resident += at.page.has_value();
    out.idle += at.page && pool_.owners(*at.page) == 1;
    out.swapped += !at.page;
  }
  return out;
}

void PrefixCache::insert(const Beginning& tokens, int64_t computed, const PageTable& table,
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
    const PageRef& page = table[static_cast<size_t>(cursor.pages)];
    if (!nodes_.at(id).page && !page.is_gone()) {
      pool_.share(page);
      make_resident(id, page);
    }
    cursor.node = id;
  }
}

void PrefixCache::forget(const Cursor& cursor) {
  const auto found = nodes_.find(cursor.node);
  if (cursor.node <= 0 || found == nodes_.end() || !found->second.page) return;
  make_absent(cursor.node);
  prune(cursor.node);
}

void PrefixCache::link(int64_t id, int64_t parent) {
  if (parent <= 0) return;
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
  else if (node.key->first > 0)
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

// Gives up what holds nothing and is nobody's beginning.
void PrefixCache::prune(int64_t id) {
  while (id > 0) {
    const Node& node = nodes_.at(id);
    if (node.page || node.slot >= 0 || node.first_child != 0) return;
    const int64_t parent = node.key->first;
    drop(id);
    id = window_ > 0 ? parent : 0;
  }
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
    const int64_t given_up = id;
    if (save(given_up)) {
      make_absent(given_up);
    } else if (window_ > 0) {
      make_absent(given_up);
      prune(given_up);
    } else {
      drop_with_children(given_up);
    }
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
