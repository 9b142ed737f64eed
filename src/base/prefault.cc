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
constexpr size_t kPage = 4096;
}  // namespace

Prefault::Prefault(std::span<std::byte> memory, int threads) : memory_(memory) {
  // Whole pages only: the rest of the first and last page may be somebody else's.
  const size_t skip = (kPage - reinterpret_cast<uintptr_t>(memory.data()) % kPage) % kPage;
  if (memory.size() < skip + kPiece) return;
  memory_ = memory.subspan(skip, (memory.size() - skip) / kPage * kPage);
  try {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this](std::stop_token stop) { run(stop); });
  } catch (const std::system_error&) {
    // Without threads the first touch pays.
  }
}

void Prefault::run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    const size_t begin = next_.fetch_add(kPiece);
    if (begin >= memory_.size()) return;
    const size_t bytes = std::min(kPiece, memory_.size() - begin);
    if (madvise(memory_.data() + begin, bytes, MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace sluice
