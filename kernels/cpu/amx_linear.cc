// A tile of W is 16 rows x 32 columns, the first operand as it lies; a tile of x is 16 pairs of
// columns x 16 rows, the second operand; a tile of sums is 16 rows of W x 16 rows of x. Bound by
// the bytes of W up to m of about 48.
#include "kernels/cpu/amx_linear.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa/transpose16.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;  // bf16 elements of a tile row

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

int64_t steps_of(int64_t k) { return (k + kTileDepth - 1) / kTileDepth; }

// One tile of W that is not whole: rows past `rows` and columns past `depth` are zero.
void stage(const uint16_t* w, int64_t k, int64_t rows, int64_t depth, std::byte* tile) {
  std::memset(tile, 0, kAmxTileBytes);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(tile + row * 64, w + row * k, static_cast<size_t>(depth) * 2);
}

// Turns a tile of sums into rows of y.
void put(const float* tile, int64_t rows, int64_t m, const float* bias, float* y, int64_t ldy) {
  __m512i block[16];
  for (int i = 0; i < 16; ++i) block[i] = _mm512_load_si512(tile + 16 * i);
  transpose16(block);
  const auto mask = static_cast<__mmask16>((1u << rows) - 1);
  const __m512 add = bias ? _mm512_maskz_loadu_ps(mask, bias) : _mm512_setzero_ps();
  for (int64_t i = 0; i < m; ++i)
    _mm512_mask_storeu_ps(y + i * ldy, mask, _mm512_add_ps(_mm512_castsi512_ps(block[i]), add));
}

// One step along k: W tiles come from `w` with row stride `stride` bytes, `apart` bytes from tile
// to tile.
template <int kWTiles, int kXTiles>
inline void step(const std::byte* w, int64_t stride, int64_t apart, const std::byte* x,
                 int64_t x_apart) {
  if constexpr (kXTiles == 2) {
    _tile_loadd(6, x, 64);
    _tile_loadd(7, x + x_apart, 64);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kWTiles == 2) {
      _tile_loadd(5, w + apart, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  } else {
    _tile_loadd(6, x, 64);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kWTiles == 4) {
      _tile_loadd(5, w + apart, stride);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(7, w + 2 * apart, stride);
      _tile_dpbf16ps(2, 7, 6);
      _tile_loadd(4, w + 3 * apart, stride);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
}

// kWTiles x 16 rows of W (the last tile may have fewer) against kXTiles x 16 rows of x.
template <int kWTiles, int kXTiles>
void block(const uint16_t* w, int64_t rows, int64_t k, const std::byte* x, int64_t m,
           const float* bias, float* y, int64_t ldy) {
  static_assert(kWTiles * kXTiles <= 4);
  const int64_t steps = steps_of(k);
  const int64_t stride = k * 2;
  const int64_t apart = kTileRows * stride;
  const int64_t x_apart = steps * kAmxTileBytes;
  const bool is_whole = rows == kWTiles * kTileRows;
  const int64_t direct = is_whole ? k / kTileDepth : 0;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const auto* bytes = reinterpret_cast<const std::byte*>(w);
  for (int64_t s = 0; s < direct; ++s)
    step<kWTiles, kXTiles>(bytes + s * 64, stride, apart, x + s * kAmxTileBytes, x_apart);
  alignas(64) std::byte staged[kWTiles * kAmxTileBytes];
  for (int64_t s = direct; s < steps; ++s) {
    for (int64_t tile = 0; tile < kWTiles; ++tile)
      stage(w + tile * kTileRows * k + s * kTileDepth, k,
            std::clamp<int64_t>(rows - tile * kTileRows, 0, kTileRows),
            std::min(kTileDepth, k - s * kTileDepth), staged + tile * kAmxTileBytes);
    step<kWTiles, kXTiles>(staged, 64, kAmxTileBytes, x + s * kAmxTileBytes, x_apart);
  }
  alignas(64) float sums[4 * 256];
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
  for (int w_tile = 0; w_tile < kWTiles; ++w_tile)
    for (int x_tile = 0; x_tile < kXTiles; ++x_tile) {
      const int64_t row = w_tile * kTileRows;
      const int64_t i = x_tile * kTileRows;
      if (row < rows && i < m)
        put(sums + (w_tile * kXTiles + x_tile) * 256, std::min(kTileRows, rows - row),
            std::min(kTileRows, m - i), bias ? bias + row : nullptr, y + i * ldy + row, ldy);
    }
}
}  // namespace

int64_t amx_scratch_bytes(int64_t m, int64_t k) noexcept {
  return (m + kTileRows - 1) / kTileRows * steps_of(k) * kAmxTileBytes;
}

void amx_arrange(const uint16_t* x, int64_t m, int64_t k, int64_t ld, int64_t begin, int64_t end,
                 std::byte* scratch) noexcept {
  const int64_t steps = steps_of(k);
  for (int64_t column = begin; column < end; ++column) {
    const int64_t tile = column / steps, s = column % steps;
    const auto depth = static_cast<unsigned>(std::min(kTileDepth, k - s * kTileDepth));
    const auto mask = static_cast<__mmask32>((uint64_t{1} << depth) - 1);
    __m512i rows[16];
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = tile * kTileRows + i;
      rows[i] = row < m ? _mm512_maskz_loadu_epi16(mask, x + row * ld + s * kTileDepth)
                        : _mm512_setzero_si512();
    }
    transpose16(rows);
    std::byte* to = scratch + column * kAmxTileBytes;
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + 64 * i, rows[i]);
  }
}

void amx_linear_rows(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                     const std::byte* arranged, int64_t m, const float* bias, float* y,
                     int64_t ldy) noexcept {
  const TileConfig config;
  _tile_loadconfig(&config);
  const int64_t tile_stride = steps_of(k) * kAmxTileBytes;
  for (int64_t row = row_begin; row < row_end; row += kAmxRowBlock) {
    const int64_t rows = std::min(kAmxRowBlock, row_end - row);
    for (int64_t i = 0; i < m; i += 32) {
      const std::byte* x = arranged + i / kTileRows * tile_stride;
      const int64_t left = std::min<int64_t>(32, m - i);
      const auto run = [&](auto kernel, int64_t step_rows) {
        for (int64_t part = 0; part < rows; part += step_rows)
          kernel(w + (row + part) * k, std::min(step_rows, rows - part), k, x, left,
                 bias ? bias + row + part : nullptr, y + i * ldy + row + part, ldy);
      };
      if (left > 16)
        run(block<2, 2>, 32);
      else if (rows == kAmxRowBlock)
        run(block<4, 1>, 64);
      else
        run(block<1, 1>, 16);
    }
  }
  _tile_release();
}

}  // namespace sluice::kernels
