#pragma once
// How rows of W are dealt to the threads.
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace sluice::kernels {

/// Calls work(row_begin, row_end) from all threads until rows [0, n) are done, in shares that are
/// whole multiples of `granule` rows but for the last: half of an even share of what is left,
/// between `least` and `most` rows (and then rounded down to granules). So a thread goes through
/// long runs of W first, and none has long to wait for the last one.
template <typename Work>
void deal_rows(int64_t n, int64_t granule, int64_t least, int64_t most, const Work& work) {
#ifdef _OPENMP
  const int64_t divisor = 2 * int64_t{omp_get_max_threads()};
#else
  const int64_t divisor = 2;
#endif
  std::atomic<int64_t> next = 0;
#pragma omp parallel if (n > least)
  for (int64_t begin = next.load(); begin < n;) {
    const int64_t share = std::clamp((n - begin) / divisor, least, most);
    const int64_t end = std::min(n, begin + std::max<int64_t>(1, share / granule) * granule);
    if (!next.compare_exchange_weak(begin, end)) continue;
    work(begin, end);
    begin = next.load();
  }
}

}  // namespace sluice::kernels
