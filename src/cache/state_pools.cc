#include "src/cache/state_pools.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice {

StatePools::Kept::Kept(const Group& group, int64_t page_tokens, bool keeps_whole)
    : shape(group),
      pool(group.pages, keeps_whole),
      known(pool, page_tokens, group.swap_pages, group.window) {}

StatePools::StatePools(std::span<const Group> groups, int64_t page_tokens, bool keeps_whole)
    : page_tokens_(page_tokens) {
  for (const Group& group : groups) all_.emplace_back(group, page_tokens, keeps_whole);
}

bool StatePools::has_windows() const noexcept {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Kept& group) { return group.shape.window > 0; });
}

int64_t StatePools::most_pages(size_t group, int64_t tokens) const noexcept {
  const int64_t all = pages_for(tokens);
  return has_window(group) ? std::min(all, all_[group].shape.ring_pages) : all;
}

// The longest beginning that is known in every group on one side.
int64_t StatePools::longest_on(const Beginning& tokens, int64_t most_pages, PageSide side) const {
  for (;;) {
    int64_t pages = most_pages;
    for (const Kept& group : all_)
      pages = std::min(pages, group.known.find(tokens, pages, side).pages);
    // A group may have gaps: what one shortens, another may know no window of.
    if (pages == most_pages || all_.size() == 1) return pages;
    most_pages = pages;
  }
}

// Of one group without a window the first page's side is the sequence's.
PageSide StatePools::side_for(const Beginning& tokens, int64_t most_pages) const {
  const std::vector<PageSide> sides = all_.front().pool.sides();
  if (sides.size() == 1 || (all_.size() == 1 && !has_windows())) return PageSide::kAny;
  const int64_t longest[] = {longest_on(tokens, most_pages, sides[0]),
                             longest_on(tokens, most_pages, sides[1])};
  return longest[1] > longest[0] ? sides[1] : sides[0];
}

StatePools::Found StatePools::find(const Beginning& tokens, int64_t most_pages) const {
  const PageSide side = side_for(tokens, most_pages);
  Found out;
  out.pages = all_.size() == 1 ? most_pages : longest_on(tokens, most_pages, side);
  for (const Kept& group : all_) out.groups.push_back(group.known.find(tokens, out.pages, side));
  out.pages = std::min(out.pages, out.groups.front().pages);
  return out;
}

int64_t StatePools::match(const Beginning& tokens, int64_t most_pages, SequencePages& pages) {
  const PageSide side = side_for(tokens, most_pages);
  queried_tokens_ += std::ssize(tokens.tokens);
  // Of what is found, some may not come back from the swap space for want of room.
  int64_t wanted = all_.size() == 1 ? most_pages : longest_on(tokens, most_pages, side);
  for (;;) {
    pages.groups.assign(all_.size(), {});
    pages.cursors.assign(all_.size(), {});
    int64_t found = wanted;
    for (size_t i = 0; i < all_.size(); ++i) {
      GroupPages& own = pages.groups[i];
      own.pages = all_[i].known.match(tokens, wanted, pages.cursors[i], side);
      own.first = std::count_if(own.pages.begin(), own.pages.end(),
                                [](const PageRef& page) { return page.is_gone(); });
      found = std::min(found, std::ssize(own.pages));
      if (!own.pages.empty() && pages.side == PageSide::kAny)
        pages.side = all_[i].pool.side_of(own.pages.back());
    }
    if (found == wanted || all_.size() == 1) {
      if (found == 0) pages.side = PageSide::kAny;
      hit_tokens_ += found * page_tokens_;
      return found;
    }
    release(pages);
    wanted = longest_on(tokens, found, side);
  }
}

// Whether its page is that of a later run of tokens by now, or in this pass.
bool StatePools::is_used_again(size_t group, const GroupPages& pages, int64_t page) const noexcept {
  const int64_t later = page + all_[group].shape.ring_pages;
  return has_window(group) && later < std::ssize(pages.pages) &&
         pages.pages[static_cast<size_t>(later)] == pages.pages[static_cast<size_t>(page)];
}

void StatePools::insert(const Beginning& tokens, int64_t computed, bool is_whole, int64_t prompt,
                        SequencePages& pages) {
  for (size_t i = 0; i < all_.size(); ++i) {
    const GroupPages& own = pages.groups[i];
    PrefixCache::Cursor& cursor = pages.cursors[i];
    if (!has_window(i)) {
      all_[i].known.insert(tokens, computed, own.pages, cursor);
    } else if (is_whole && cursor.pages < computed / page_tokens_) {
      PageTable written = own.pages;
      for (int64_t page = own.first; page < std::ssize(written); ++page)
        if (is_used_again(i, own, page)) written[static_cast<size_t>(page)] = kGonePage;
      const PrefixCache::Cursor before = cursor;
      all_[i].known.insert(tokens, computed, written, cursor);
      if (all_[i].shape.is_recurrent && before.pages * page_tokens_ > prompt)
        all_[i].known.forget(before);
    }
  }
}

bool StatePools::grow(size_t group, GroupPages& pages, int64_t tokens, const Take& take) const {
  const Kept& at = all_[group];
  for (auto page = std::ssize(pages.pages); page < pages_for(tokens); ++page) {
    const int64_t before = page - at.shape.ring_pages;
    if (at.shape.window > 0 && before >= pages.first) {
      const PageRef& ring = pages.pages[static_cast<size_t>(before)];
      if (at.pool.owners(ring) == 1) {
        pages.pages.push_back(PageRef(ring));
        continue;
      }
    }
    if (!take(pages.pages)) return false;
  }
  return true;
}

bool StatePools::extend(size_t group, PageTable& table, int64_t count, PageSide side) {
  Kept& at = all_[group];
  while (!at.pool.extend(table, count, side))
    if (!at.known.evict_one()) return false;
  return true;
}

bool StatePools::grow(size_t group, SequencePages& pages, int64_t tokens) {
  PageTable& table = pages.groups[group].pages;
  if (!has_window(group))
    return extend(group, table, std::max<int64_t>(pages_for(tokens) - std::ssize(table), 0),
                  pages.side);
  return grow(group, pages.groups[group], tokens,
              [&](PageTable& table) { return extend(group, table, 1, pages.side); });
}

void StatePools::pass(size_t group, GroupPages& pages, int64_t computed, const Give& give) const {
  const int64_t window = all_[group].shape.window;
  if (window == 0) return;
  const int64_t seen = std::max<int64_t>(computed - window + 1, 0) / page_tokens_;
  for (; pages.first < std::min(seen, std::ssize(pages.pages)); ++pages.first) {
    PageRef& page = pages.pages[static_cast<size_t>(pages.first)];
    if (!is_used_again(group, pages, pages.first)) give(page);
    page = kGonePage;
  }
}

void StatePools::pass(SequencePages& pages, int64_t computed) {
  for (size_t i = 0; i < all_.size(); ++i)
    pass(i, pages.groups[i], computed, [&](const PageRef& page) {
      PageTable one{page};
      all_[i].pool.release(one);
    });
}

void StatePools::for_each(size_t group, const GroupPages& pages, const Give& visit) const {
  // The last first: see PagePool::release().
  for (int64_t page = std::ssize(pages.pages); page-- > pages.first;)
    if (!is_used_again(group, pages, page)) visit(pages.pages[static_cast<size_t>(page)]);
}

void StatePools::share(const SequencePages& pages) {
  for (size_t i = 0; i < pages.groups.size(); ++i)
    for_each(i, pages.groups[i], [&](const PageRef& page) { all_[i].pool.share(page); });
}

void StatePools::release(SequencePages& pages) {
  for (size_t i = 0; i < pages.groups.size(); ++i)
    for_each(i, pages.groups[i], [&](const PageRef& page) {
      PageTable one{page};
      all_[i].pool.release(one);
    });
  for (size_t i = 0; i < pages.promised.size(); ++i)
    all_[i].pool.take_back_promise(pages.promised[i], pages.side);
  pages = {};
}

bool StatePools::promise(SequencePages& pages, std::span<const int64_t> counts) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (all_[i].pool.promise(counts[i], pages.side)) continue;
    while (i-- > 0) all_[i].pool.take_back_promise(counts[i], pages.side);
    return false;
  }
  pages.promised.assign(counts.begin(), counts.end());
  return true;
}

std::vector<GroupCopy> StatePools::take_copies() {
  std::vector<GroupCopy> out;
  for (size_t i = 0; i < all_.size(); ++i)
    for (const PageCopy& copy : all_[i].known.take_copies())
      out.push_back({static_cast<int32_t>(i), copy});
  return out;
}

// A page of tokens is one page in every group, and they are computed together.
void StatePools::set_costs(double copy, double compute) noexcept {
  for (Kept& group : all_) group.known.set_costs(copy, compute / static_cast<double>(all_.size()));
}

void StatePools::clear() {
  for (Kept& group : all_) group.known.clear();
}

template <typename Pages>
int64_t StatePools::sum(const Pages& pages) const noexcept {
  int64_t all = 0;
  for (const Kept& group : all_) all += pages(group);
  return all;
}

int64_t StatePools::total_pages() const noexcept {
  return sum([](const Kept& group) { return group.pool.total_pages(); });
}

int64_t StatePools::used_pages() const noexcept {
  return sum([](const Kept& group) {
    return group.pool.total_pages() - group.pool.free_pages() - group.known.idle_pages();
  });
}

int64_t StatePools::saved_pages() const noexcept {
  return sum([](const Kept& group) { return group.known.saved_pages(); });
}

int64_t StatePools::restored_pages() const noexcept {
  return sum([](const Kept& group) { return group.known.restored_pages(); });
}

}  // namespace sluice
