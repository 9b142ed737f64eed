#include "src/schedule/weight_ring.h"

#include <algorithm>
#include <iterator>
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

void WeightRing::drop_from(int64_t index) {
  while (!live_.empty() && live_.back().index >= index) live_.pop_back();
}

int64_t weight_part_rows(int64_t row_bytes, int64_t granule) noexcept {
  const int64_t rows = std::max<int64_t>(kWeightPartBytes / row_bytes, 1);
  return rows >= granule ? rows / granule * granule : rows;
}

int64_t weight_ring_bytes(std::span<const int64_t> bytes, int64_t largest_part, int ahead) {
  std::vector<int64_t> streamed;
  std::copy_if(bytes.begin(), bytes.end(), std::back_inserter(streamed),
               [](int64_t size) { return size > 0; });
  if (streamed.empty()) return 0;
  const size_t window = std::min(streamed.size(), static_cast<size_t>(ahead) + 1);
  int64_t largest = 0;
  for (size_t first = 0; first < streamed.size(); ++first) {
    int64_t sum = 0;
    for (size_t i = 0; i < window; ++i) sum += streamed[(first + i) % streamed.size()];
    largest = std::max(largest, sum);
  }
  return round_up(largest + largest_part, 4096);
}

}  // namespace sluice
