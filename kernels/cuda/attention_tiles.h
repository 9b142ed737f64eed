#pragma once
// Tile sizes of the attention kernels, which the plan must know too.
#include <cstdint>

#include "kernels/attention.h"

namespace sluice::cuda {

/// Packed rows that one matrix instruction takes: runs of at most this many split their context
/// over the warps instead of their rows.
constexpr int32_t kFewRows = 16;

/// head_dim as the kernels are made for.
constexpr int32_t padded_head_dim(int32_t head_dim) noexcept {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
/// Warps of a block: heads of 256 leave shared memory for two.
constexpr int32_t attention_warps(int32_t padded_dim) noexcept { return padded_dim > 128 ? 2 : 4; }
/// Packed rows of a whole tile, and positions of K and V that are in shared memory at a time.
constexpr int32_t tile_of(int32_t head_dim) noexcept {
  return 16 * attention_warps(padded_head_dim(head_dim));
}

/// Blocks that a multiprocessor holds, where it has the shared memory: what registers are held to.
constexpr int most_attention_blocks(int32_t padded_dim) noexcept { return padded_dim > 64 ? 3 : 4; }

/// Shared memory of a block of few rows.
int64_t few_rows_shared_bytes(const kernels::AttentionShape& shape);

}  // namespace sluice::cuda
