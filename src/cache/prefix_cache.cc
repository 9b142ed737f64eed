#include "src/cache/prefix_cache.h"

#include <algorithm>

namespace sluice {

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
  if (node.children == 0) leaves_.erase({node.used, id});
  node.used = ++clock_;
  if (node.children == 0) leaves_.insert({node.used, id});
}

PageTable PrefixCache::match(std::span<const int32_t> tokens, int64_t most_pages, Cursor& cursor) {
  PageTable table;
  cursor = {};
  const int64_t full = static_cast<int64_t>(tokens.size()) / page_tokens_;
  for (int64_t page = 0; page < std::min(full, most_pages); ++page) {
    const auto found = ids_.find(key_at(cursor.node, tokens, page));
    if (found == ids_.end()) break;
    cursor = {found->second, page + 1};
    touch(cursor.node);
    table.push_back(nodes_.at(cursor.node).page);
    pool_.share(table.back());
  }
  queried_tokens_ += static_cast<int64_t>(tokens.size());
  hit_tokens_ += cursor.pages * page_tokens_;
  return table;
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
      nodes_[id] = {&entry->first, table[static_cast<size_t>(cursor.pages)], 0, ++clock_};
      leaves_.insert({clock_, id});
      pool_.share(nodes_[id].page);
      if (cursor.node > 0) {
        Node& parent = nodes_.at(cursor.node);
        if (parent.children++ == 0) leaves_.erase({parent.used, cursor.node});
      }
    } else {
      touch(id);
    }
    cursor.node = id;
  }
}

void PrefixCache::drop(int64_t id) {
  const Node node = nodes_.at(id);
  leaves_.erase({node.used, id});
  if (const int64_t parent = node.key->first; parent > 0) {
    Node& above = nodes_.at(parent);
    if (--above.children == 0) leaves_.insert({above.used, parent});
  }
  nodes_.erase(id);
  ids_.erase(ids_.find(*node.key));
  PageTable page{node.page};
  pool_.release(page);
}

bool PrefixCache::evict_one() {
  for (const auto& [used, id] : leaves_) {
    if (pool_.owners(nodes_.at(id).page) > 1) continue;
    drop(id);
    return true;
  }
  return false;
}

int64_t PrefixCache::idle_pages() const noexcept {
  return std::count_if(nodes_.begin(), nodes_.end(),
                       [&](const auto& node) { return pool_.owners(node.second.page) == 1; });
}

void PrefixCache::clear() {
  while (!leaves_.empty()) drop(leaves_.begin()->second);
}

}  // namespace sluice
