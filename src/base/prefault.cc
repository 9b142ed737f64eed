#include "src/base/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <system_error>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace sluice {

namespace {
constexpr size_t kPiece = size_t{16} << 20;  // a few milliseconds: stopping never takes longer
constexpr size_t kPageBytes = 4096;
}  // namespace

Prefault::Prefault(const std::vector<std::span<std::byte>>& ranges, int threads) {
  for (std::span<std::byte> range : ranges) {
    // Whole pages only: the rest of the first and last page may be somebody else's.
    const size_t skip =
        (kPageBytes - reinterpret_cast<uintptr_t>(range.data()) % kPageBytes) % kPageBytes;
    if (range.size() < skip + kPageBytes) continue;
    range = range.subspan(skip, (range.size() - skip) / kPageBytes * kPageBytes);
    for (size_t begin = 0; begin < range.size(); begin += kPiece)
      pieces_.push_back(range.subspan(begin, std::min(kPiece, range.size() - begin)));
  }
  try {
    for (int i = 0; i < threads && !pieces_.empty(); ++i)
      threads_.emplace_back([this](std::stop_token stop) { run(stop); });
  } catch (const std::system_error&) {
    // Without threads the first touch pays.
  }
}

void Prefault::finish() {
  for (std::jthread& thread : threads_) thread.join();
  threads_.clear();
}

void Prefault::run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    const size_t index = next_.fetch_add(1);
    if (index >= pieces_.size()) return;
    const std::span<std::byte> piece = pieces_[index];
    if (madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace sluice
