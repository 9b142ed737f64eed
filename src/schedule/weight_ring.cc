#include "src/schedule/weight_ring.h"

#include <algorithm>
#include <vector>

#include "src/base/bytes.h"

namespace sluice {

std::optional<int64_t> WeightRing::place(int64_t index, int64_t bytes) {
  if (bytes == 0) return 0;
  int64_t begin = 0;
  if (live_.empty()) {
    if (bytes > capacity_) return std::nullopt;
  } else {
    const int64_t head = live_.front().begin;
    const int64_t tail = live_.back().end;
    const bool is_wrapped = tail <= head;
    if (is_wrapped) {
      if (tail + bytes > head) return std::nullopt;
      begin = tail;
    } else if (tail + bytes <= capacity_) {
      begin = tail;
    } else if (bytes <= head) {
      begin = 0;
    } else {
      return std::nullopt;
    }
  }
  live_.push_back({index, begin, begin + bytes});
  return begin;
}

void WeightRing::release_before(int64_t index) {
  while (!live_.empty() && live_.front().index < index) live_.pop_front();
}

void WeightRing::rotate(int64_t count) {
  for (Region& region : live_) region.index -= count;
}

namespace {
// Follows the schedule, which places as much as fits at each step and at most one round ahead, from
// an empty ring until the ring looks at the start of a pass as it did at the start of an earlier
// one: from there on nothing new happens. A pass that looks no further than its own end places the
// same up to there, and the next starts with an empty ring.
bool next_always_fits(std::span<const int64_t> bytes, int64_t capacity) {
  constexpr int kPasses = 64;
  const auto count = static_cast<int64_t>(bytes.size());
  WeightRing ring(capacity);
  std::vector<WeightRing> seen;
  int64_t next = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (std::find(seen.begin(), seen.end(), ring) != seen.end()) return true;
    seen.push_back(ring);
    for (int64_t running = 0; running < count; ++running) {
      ring.release_before(running);
      while (next < running + count && ring.place(next, bytes[static_cast<size_t>(next % count)]))
        ++next;
      if (next < running + std::min<int64_t>(2, count)) return false;
    }
    ring.release_before(count);
    ring.rotate(count);
    next -= count;
  }
  return false;
}
}  // namespace

int64_t smallest_ring_bytes(std::span<const int64_t> bytes) {
  const int64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  if (largest == 0) return 0;
  int64_t pair = 0;
  int64_t enough = 0;  // wherever the current one lies, the next fits before or behind it
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int64_t next = bytes[(i + 1) % bytes.size()];
    pair = std::max(pair, bytes[i] + next);
    enough = std::max(enough, bytes[i] + 2 * next);
  }
  const int64_t step = round_up(std::max<int64_t>(pair / 64, 1), 4096);
  int64_t capacity = round_up(pair, 4096);
  while (capacity < enough && !next_always_fits(bytes, capacity)) capacity += step;
  return std::min(capacity, round_up(enough, 4096));
}

}  // namespace sluice
