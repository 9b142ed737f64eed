#pragma once
// Host memory that a GPU's copies go from and to: faulted in by several threads and page-locked in
// pieces, so that neither is the work of one thread for minutes, and what the system refuses is a
// piece and not all. CUDA refuses a copy that begins in one registration and ends in another, so
// copies are cut where pieces end. What could not be page-locked is there all the same: the driver
// then copies through buffers of its own. Thread safe.
#include <functional>
#include <map>
#include <vector>

#include "kernels/cuda/driver.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"
#include "src/base/mutex.h"

namespace sluice {

class PinnedSource final : public MemorySource {
 public:
  struct Sizes {
    int64_t piece = 2 * kGiB;  ///< page-locked at a time, of a range that may be in pieces
  };
  /// Of GPU `device`; other GPUs' copies find it page-locked too.
  PinnedSource(int device, const Sizes& sizes) : device_(device), sizes_(sizes) {}

  /// With Registration::kWhole page-locked as a whole or not at all.
  std::byte* take(int64_t bytes, Registration registration) override;
  void give_back(std::byte* memory, int64_t bytes) noexcept override;

  /// Bytes given that are page-locked, and that are not.
  int64_t pinned_bytes() const noexcept;
  int64_t pageable_bytes() const noexcept;
  /// Calls `part(offset, bytes, is_pinned)` for parts of [at, at + bytes), in order: each within
  /// one registration, or without any page that is page-locked here.
  void cut(const std::byte* at, int64_t bytes,
           const std::function<void(int64_t offset, int64_t bytes, bool is_pinned)>& part) const;

 private:
  struct Range {
    int64_t bytes = 0;
    int64_t piece = 0;         // bytes of a registration; the last may be shorter
    int64_t pinned_bytes = 0;  // from its beginning
    std::vector<cuda::PinnedRange> pieces;
  };
  void pin(std::byte* memory, Range& range) const;

  int device_;
  Sizes sizes_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Range> ranges_ SLUICE_GUARDED_BY(mutex_);
  int64_t pinned_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t pageable_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
