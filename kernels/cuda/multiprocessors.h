#pragma once
// What a GPU has to run blocks on, as far as plans depend on it.
#include <algorithm>
#include <cstdint>

namespace sluice::cuda {

struct Multiprocessors {
  int count = 1;
  int64_t shared_bytes = 228 << 10;  ///< of each, for its blocks
  int64_t beside = 1 << 10;          ///< of that taken by each block beside its own
};

/// Blocks of a kernel that a multiprocessor holds, of `most` that its registers are held to.
constexpr int blocks_that_fit(const Multiprocessors& processors, int most, int64_t block_bytes) {
  const int64_t by_memory = processors.shared_bytes / (block_bytes + processors.beside);
  return static_cast<int>(std::clamp<int64_t>(by_memory, 1, most));
}

}  // namespace sluice::cuda
