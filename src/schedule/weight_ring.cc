#include "src/schedule/weight_ring.h"

#include <algorithm>

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

namespace {
bool next_always_fits(std::span<const int64_t> bytes, int64_t capacity) {
  WeightRing ring(capacity);
  const auto count = static_cast<int64_t>(bytes.size());
  if (!ring.place(0, bytes[0])) return false;
  for (int64_t index = 0; index < 4 * count; ++index) {
    ring.release_before(index);
    if (!ring.place(index + 1, bytes[static_cast<size_t>((index + 1) % count)])) return false;
  }
  return true;
}
}  // namespace

int64_t smallest_ring_bytes(std::span<const int64_t> bytes) {
  const int64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  if (largest == 0) return 0;
  int64_t pair = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    pair = std::max(pair, bytes[i] + bytes[(i + 1) % bytes.size()]);
  const int64_t step = round_up(std::max<int64_t>(pair / 64, 1), 4096);
  int64_t capacity = round_up(pair, 4096);
  while (!next_always_fits(bytes, capacity)) capacity += step;
  return capacity;
}

}  // namespace sluice
