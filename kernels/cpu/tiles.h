#pragma once
// How rows of x are cut into tiles for the kernels of many rows. Static functions: files compiled
// for other instruction sets include this, and none may lend its copy to the rest.
#include <cstdint>

namespace sluice::kernels {

/// Tiles of up to `most` rows, as even as can be.
static inline int64_t tile_count(int64_t m, int64_t most) noexcept { return (m + most - 1) / most; }
static inline int64_t tile_begin(int64_t m, int64_t most, int64_t tile) noexcept {
  return m * tile / tile_count(m, most);
}
/// Bytes of a tile of bf16: for every four columns as many bf16 of each row that it has room for.
static inline int64_t bf16_tile_bytes(int64_t k, int64_t room) noexcept {
  return (k + 3) / 4 * room * 8;
}

/// Tiles of m rows that are arranged and multiplied at a time: in 6 MiB they stay in L3 beside W.
static inline int64_t tiles_at_a_time(int64_t m, int64_t most, int64_t tile_bytes) noexcept {
  const int64_t tiles = tile_count(m, most);
  const int64_t fit = (int64_t{6} << 20) / tile_bytes > 4 ? (int64_t{6} << 20) / tile_bytes : 4;
  return tiles < fit ? tiles : fit;
}
/// The rows of the next so many tiles, of m that are left: even parts.
static inline int64_t rows_at_a_time(int64_t m, int64_t most, int64_t tile_bytes) noexcept {
  const int64_t parts = tile_count(tile_count(m, most), tiles_at_a_time(m, most, tile_bytes));
  return (m + parts - 1) / parts;
}

}  // namespace sluice::kernels
