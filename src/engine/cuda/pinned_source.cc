#include "src/engine/cuda/pinned_source.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/prefault.h"
#include "src/base/side_by_side.h"

namespace sluice {

namespace {
// Memory is zeroed at its whole rate by a few cores.
int faulting_threads() { return std::min(usable_processors(), 16); }
}  // namespace

// The next piece is faulted in while the driver looks at the pages of the one before.
void PinnedSource::pin(std::byte* memory, Range& range) const {
  const cuda::DeviceScope scope(device_);
  const int threads = faulting_threads();
  const auto fault_in = [&](int64_t begin) {
    const int64_t bytes = std::min(range.piece, range.bytes - begin);
    std::vector<std::span<std::byte>> piece;
    if (bytes > 0) piece.emplace_back(memory + begin, static_cast<size_t>(bytes));
    return std::make_unique<Prefault>(piece, threads);
  };
  std::unique_ptr<Prefault> ahead = fault_in(0);
  try {
    for (int64_t begin = 0; begin < range.bytes; begin += range.piece) {
      ahead->finish();
      ahead = fault_in(begin + range.piece);
      const int64_t bytes = std::min(range.piece, range.bytes - begin);
      range.pieces.emplace_back(memory + begin, bytes);
      range.pinned_bytes += bytes;
    }
  } catch (const Error&) {
    // Containers and virtual machines may limit what is page-locked: what is, stays.
  }
}

std::byte* PinnedSource::take(int64_t bytes, Registration registration) {
  std::byte* memory = map_memory(bytes);
  if (!memory) return nullptr;
  Range range;
  range.bytes = bytes;
  range.piece = registration == Registration::kWhole ? bytes : sizes_.piece;
  try {
    pin(memory, range);
  } catch (...) {
    range.pieces.clear();
    unmap_memory(memory, bytes);
    throw;
  }
  const MutexLock lock(mutex_);
  pinned_bytes_ += range.pinned_bytes;
  pageable_bytes_ += bytes - range.pinned_bytes;
  ranges_.emplace(memory, std::move(range));
  return memory;
}

void PinnedSource::give_back(std::byte* memory, int64_t bytes) noexcept {
  {
    const MutexLock lock(mutex_);
    const auto found = ranges_.find(memory);
    pinned_bytes_ -= found->second.pinned_bytes;
    pageable_bytes_ -= found->second.bytes - found->second.pinned_bytes;
    ranges_.erase(found);
  }
  unmap_memory(memory, bytes);
}

int64_t PinnedSource::pinned_bytes() const noexcept {
  const MutexLock lock(mutex_);
  return pinned_bytes_;
}

int64_t PinnedSource::pageable_bytes() const noexcept {
  const MutexLock lock(mutex_);
  return pageable_bytes_;
}

void PinnedSource::cut(const std::byte* at, int64_t bytes,
                       const std::function<void(int64_t, int64_t, bool)>& part) const {
  int64_t begin = 0, pinned = 0, piece = 1;  // of the range that `at` is in; counted from its start
  {
    const MutexLock lock(mutex_);
    auto range = ranges_.upper_bound(at);
    if (range != ranges_.begin() && (--range, at < range->first + range->second.bytes)) {
      begin = at - range->first;
      pinned = range->second.pinned_bytes;
      piece = range->second.piece;
    }
  }
  int64_t done = 0;
  while (done < bytes && begin + done < pinned) {
    const int64_t end = std::min(round_down(begin + done, piece) + piece, pinned);
    const int64_t count = std::min(bytes - done, end - (begin + done));
    part(done, count, true);
    done += count;
  }
  if (done < bytes) part(done, bytes - done, false);
}

}  // namespace sluice
