#pragma once
// Host memory that a GPU's copies go from and to: faulted in by several threads and page-locked in
// pieces, so that neither is the work of one thread for minutes, and what the system refuses is a
// piece and not all. What could not be page-locked is there all the same: the driver then copies
// through buffers of its own. Thread safe.
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
    int64_t piece = 2 * kGiB;  ///< page-locked at a time
    /// Ranges up to this are page-locked as a whole or not at all: what works in them makes copies
    /// of its own, and one that is page-locked in part is refused.
    int64_t whole = 8 * kGiB;
  };
  PinnedSource() : PinnedSource(Sizes()) {}
  explicit PinnedSource(const Sizes& sizes) : sizes_(sizes) {}

  std::byte* take(int64_t bytes) override;
  void give_back(std::byte* memory, int64_t bytes) noexcept override;

  /// Bytes given that are page-locked, and that are not.
  int64_t pinned_bytes() const noexcept;
  int64_t pageable_bytes() const noexcept;
  /// Calls `part(offset, bytes)` for parts of [at, at + bytes) that are each page-locked or not.
  void cut(const std::byte* at, int64_t bytes,
           const std::function<void(int64_t offset, int64_t bytes)>& part) const;

 private:
  struct Range {
    int64_t bytes = 0;
    int64_t pinned_bytes = 0;  // from its beginning
    std::vector<cuda::PinnedRange> pieces;
  };
  void pin(std::byte* memory, Range& range) const;

  Sizes sizes_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Range> ranges_ SLUICE_GUARDED_BY(mutex_);
  int64_t pinned_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t pageable_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
