#include "src/ranks/dealer.h"

#include <algorithm>

#include "src/base/error.h"

namespace sluice::ranks {

namespace {
bool before(const jobs::ContentKey& a, const jobs::ContentKey& b) noexcept {
  return a.high != b.high ? a.high < b.high : a.low < b.low;
}
}  // namespace

Dealer::Dealer(std::vector<Row> rows, int ranks, const Patience& patience)
    : ranks_(static_cast<size_t>(ranks)), patience_(patience) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.length > b.length; });
  rows_.reserve(rows.size());
  by_key_.reserve(rows.size());
  for (const Row& row : rows) {
    by_key_.emplace_back(row.key, static_cast<int32_t>(rows_.size()));
    rows_.push_back({row});
  }
  std::sort(by_key_.begin(), by_key_.end(),
            [](const auto& a, const auto& b) { return before(a.first, b.first); });
  left_ = waiting_ = static_cast<int64_t>(rows_.size());
}

int32_t Dealer::find(const jobs::ContentKey& key) const {
  const auto it = std::lower_bound(
      by_key_.begin(), by_key_.end(), key,
      [](const auto& entry, const auto& wanted) { return before(entry.first, wanted); });
  return it == by_key_.end() || it->first != key ? -1 : it->second;
}

void Dealer::join(int rank, double now) {
  Rank& one = at(rank);
  one.state = RankState::kWorking;
  one.heard = one.moved = now;
}

bool Dealer::hold(int rank, const jobs::ContentKey& key) {
  const int32_t index = find(key);
  if (index < 0) return false;
  Entry& entry = rows_[static_cast<size_t>(index)];
  if (entry.is_done) return false;
  at(rank).held.insert(index);
  if (entry.holder == kNobody) {
    entry.holder = rank;
    --waiting_;
  }
  return true;
}

bool Dealer::give(int rank, int32_t index, std::vector<Row>& out, double now) {
  Entry& entry = rows_[static_cast<size_t>(index)];
  Rank& one = at(rank);
  if (one.held.contains(index)) return false;
  if (one.held.empty()) one.moved = now;
  one.held.insert(index);
  entry.holder = rank;
  --waiting_;
  out.push_back(entry.row);
  return true;
}

int Dealer::working() const noexcept {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.state == RankState::kWorking;
  }));
}

std::vector<Row> Dealer::deal(int rank, int64_t want, bool is_idle, double now) {
  std::vector<Row> out;
  if (at(rank).state != RankState::kWorking || waiting_ == 0) return out;
  const int64_t working = this->working();
  if (!is_idle && waiting_ <= 2 * working) return out;
  const int64_t share = (waiting_ + 2 * working - 1) / (2 * working);
  want = std::min(want, std::max<int64_t>(share, 1));
  const auto has_room = [&] { return static_cast<int64_t>(out.size()) < want; };
  const auto is_free = [&](int32_t index) {
    const Entry& entry = rows_[static_cast<size_t>(index)];
    return !entry.is_done && entry.holder == kNobody;
  };
  for (auto it = returned_.begin(); it != returned_.end() && has_room();)
    it = !is_free(*it) || give(rank, *it, out, now) ? returned_.erase(it) : it + 1;
  for (; next_ < rows_.size() && has_room(); ++next_) {
    const auto index = static_cast<int32_t>(next_);
    // One that it holds although nobody had it dealt: it said so at the beginning.
    if (is_free(index) && !give(rank, index, out, now)) returned_.push_back(index);
  }
  return out;
}

bool Dealer::finish(int rank, const jobs::ContentKey& key) {
  const int32_t index = find(key);
  if (index < 0) return false;
  Entry& entry = rows_[static_cast<size_t>(index)];
  at(rank).held.erase(index);
  if (entry.is_done) return false;
  entry.is_done = true;
  if (entry.holder == kNobody) --waiting_;
  --left_;
  ++at(rank).finished;
  return true;
}

void Dealer::hear(int rank, int64_t passes, double now) {
  Rank& one = at(rank);
  if (one.state == RankState::kAbsent || one.state == RankState::kLeft) return;
  one.heard = now;
  const bool has_moved = passes != one.passes || one.held.empty();
  if (has_moved) one.moved = now;
  one.passes = passes;
  if (one.state != RankState::kLost) return;
  if (now - one.moved <= patience_.stall_seconds) one.state = RankState::kWorking;
}

// The rank keeps them in `held`: it may be computing them still.
void Dealer::take_rows(int rank) {
  for (const int32_t index : at(rank).held) {
    Entry& entry = rows_[static_cast<size_t>(index)];
    if (entry.is_done || entry.holder != rank) continue;
    entry.holder = kNobody;
    returned_.push_back(index);
    ++waiting_;
    ++dealt_again_;
  }
  std::sort(returned_.begin(), returned_.end());  // long ones first, whatever the set's order
}

void Dealer::leave(int rank) {
  if (at(rank).state == RankState::kLeft) return;
  take_rows(rank);
  at(rank).held.clear();
  at(rank).state = RankState::kLeft;
}

std::vector<int> Dealer::give_up(double now) {
  std::vector<int> lost;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    Rank& one = at(rank);
    if (one.state != RankState::kWorking) continue;
    const bool is_silent = now - one.heard > patience_.silence_seconds;
    const bool is_stalled = !one.held.empty() && now - one.moved > patience_.stall_seconds;
    if (!is_silent && !is_stalled) continue;
    one.state = RankState::kLost;
    take_rows(rank);
    lost.push_back(rank);
  }
  return lost;
}

}  // namespace sluice::ranks
