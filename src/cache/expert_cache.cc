#include "src/cache/expert_cache.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace sluice {

ExpertCache::ExpertCache(int64_t experts, int64_t slots, double decay)
    : keeps_(std::log(decay)),
      slots_(static_cast<size_t>(experts), -1),
      held_(static_cast<size_t>(slots)),
      worth_(static_cast<size_t>(experts)),
      is_wanted_(static_cast<size_t>(experts), false) {
  SLUICE_ASSERT(decay > 0 && decay <= 1 && slots >= 0 && slots <= experts, "see the header");
  for (int32_t slot = 0; slot < static_cast<int32_t>(slots); ++slot) {
    held_[static_cast<size_t>(slot)] = slot;
    slots_[static_cast<size_t>(slot)] = slot;
  }
}

void ExpertCache::use(const Use& one) {
  Worth& worth = worth_[static_cast<size_t>(one.expert)];
  const double left =
      worth.last < 0 ? 0 : worth.uses * std::exp(keeps_ * static_cast<double>(now_ - worth.last));
  const double uses = left + one.tokens;
  worth = {uses, now_, std::log(uses) - static_cast<double>(now_) * keeps_};
}

// The least worth of those that nobody wants just now; of equal ones the one used longest ago, then
// the one in the last slot: what was never used goes from the back.
int32_t ExpertCache::victim() const {
  int32_t found = -1;
  for (int32_t slot = 0; slot < static_cast<int32_t>(held_.size()); ++slot) {
    const int32_t expert = held_[static_cast<size_t>(slot)];
    if (is_wanted_[static_cast<size_t>(expert)]) continue;
    if (found < 0) {
      found = slot;
      continue;
    }
    const Worth& mine = worth_[static_cast<size_t>(expert)];
    const Worth& theirs = worth_[static_cast<size_t>(held_[static_cast<size_t>(found)])];
    if (mine.rank < theirs.rank || (mine.rank == theirs.rank && mine.last <= theirs.last))
      found = slot;
  }
  SLUICE_ASSERT(found >= 0, "no more are asked for than there are slots");
  return found;
}

std::vector<ExpertCache::Place> ExpertCache::take(std::span<const Use> asked, int64_t tokens) {
  SLUICE_ASSERT(asked.size() <= held_.size(), "no more are asked for than there are slots");
  for (const Use& one : asked) is_wanted_[static_cast<size_t>(one.expert)] = true;
  std::vector<Place> places;
  places.reserve(asked.size());
  now_ += tokens;
  for (const Use& one : asked) {
    use(one);
    int32_t& slot = slots_[static_cast<size_t>(one.expert)];
    ++counts_.asked;
    const bool is_load = slot < 0;
    if (is_load) {
      slot = victim();
      slots_[static_cast<size_t>(held_[static_cast<size_t>(slot)])] = -1;
      held_[static_cast<size_t>(slot)] = one.expert;
    } else {
      ++counts_.found;
    }
    places.push_back({one.expert, slot, is_load});
  }
  for (const Use& one : asked) is_wanted_[static_cast<size_t>(one.expert)] = false;
  return places;
}

std::vector<int32_t> ExpertCache::by_worth() const {
  std::vector<int32_t> out = held_;
  std::stable_sort(out.begin(), out.end(), [&](int32_t a, int32_t b) {
    const Worth& one = worth_[static_cast<size_t>(a)];
    const Worth& other = worth_[static_cast<size_t>(b)];
    return one.rank > other.rank || (one.rank == other.rank && one.last > other.last);
  });
  return out;
}

void ExpertCache::hold(std::span<const int32_t> experts) {
  SLUICE_ASSERT(experts.size() <= held_.size(), "each has a slot");
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    const int32_t expert = experts[slot], before = held_[slot];
    const int32_t from = slots_[static_cast<size_t>(expert)];
    if (from == static_cast<int32_t>(slot)) continue;
    held_[slot] = expert;
    slots_[static_cast<size_t>(expert)] = static_cast<int32_t>(slot);
    slots_[static_cast<size_t>(before)] = from;
    if (from >= 0) held_[static_cast<size_t>(from)] = before;
  }
}

}  // namespace sluice
