#pragma once
// Tile sizes of the attention kernels, which the plan must know too.
#include <cstdint>

#include "kernels/attention.h"

namespace sluice::cuda {

/// Packed rows that one matrix instruction takes: runs of at most this many split their context
/// over the warps instead of their rows.
constexpr int32_t kFewRows = 16;

/// Heads whose outputs a warp keeps have at most so many columns; of wider ones
/// (wide_attention.cu) the kernels take up to kWideDim.
constexpr int32_t kMostKeptDim = 256;
constexpr int32_t kWideDim = 512;

/// head_dim as the kernels are made for, of heads that a warp keeps.
constexpr int32_t padded_head_dim(int32_t head_dim) noexcept {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
/// Warps of a block: heads of 256 leave shared memory for two.
constexpr int32_t attention_warps(int32_t padded_dim) noexcept { return padded_dim > 128 ? 2 : 4; }
/// Packed rows of a whole tile; of heads that a warp keeps also the positions of K and V that are
/// in shared memory at a time.
constexpr int32_t tile_of(int32_t head_dim) noexcept {
  return head_dim > kMostKeptDim ? kFewRows : 16 * attention_warps(padded_head_dim(head_dim));
}

/// Blocks that a multiprocessor holds, where it has the shared memory: what registers are held to.
constexpr int most_attention_blocks(int32_t padded_dim) noexcept { return padded_dim > 64 ? 3 : 4; }

/// Of wide heads: positions in shared memory at a time, blocks that registers are held to, and
/// bytes of shared memory: queries, positions, weights, maxima and sums of four warps, places.
constexpr int32_t kWideTile = 32;
constexpr int kMostWideBlocks = 3;
constexpr int64_t kWideSharedBytes = int64_t{kFewRows + kWideTile} * (kWideDim + 8) * 2 +
                                     int64_t{kFewRows} * (kWideTile + 8) * 2 +
                                     2 * 4 * int64_t{kFewRows} * 4 + int64_t{kWideTile} * 8;

/// Of attention to latent rows (latent_attention.cu): packed rows and positions of a block, and the
/// row's width as the kernels are made for.
constexpr int32_t kLatentRows = 32;
constexpr int32_t kLatentTile = 32;
constexpr int32_t kMostLatentDim = 576;
constexpr int32_t padded_latent_dim(int32_t dim) noexcept {
  return dim <= 128 ? 128 : dim <= 320 ? 320 : kMostLatentDim;
}
constexpr int kMostLatentBlocks = 2;
/// Bytes of shared memory: queries, positions, weights, maxima and sums, places.
constexpr int64_t latent_shared_bytes(int32_t padded_dim) noexcept {
  return int64_t{kLatentRows + kLatentTile} * (padded_dim + 8) * 2 +
         int64_t{kLatentRows} * (kLatentTile + 8) * 2 + 2 * 2 * int64_t{kLatentRows} * 4 +
         int64_t{kLatentTile} * 8;
}

/// Shared memory of a block of few rows.
int64_t few_rows_shared_bytes(const kernels::AttentionShape& shape);

}  // namespace sluice::cuda
