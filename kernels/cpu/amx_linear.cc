// A tile of W is 16 rows x 32 columns, the first operand as it lies; a tile of x is 16 pairs of columns x 16 rows, the
// second operand; a tile of sums is 16 rows of W x 16 rows of x. Bound by the bytes of W up to m of about 48.
#include "kernels/cpu/amx_linear.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace sluice::kernels {

namespace {
#include "kernels/cpu/transpose16.inc"

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;    // bf16 elements of a tile row
constexpr int64_t kTileBytes = 1024;  // 16 rows x 64 bytes

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
  std::memset(tile, 0, kTileBytes);
  for (int64_t row = 0; row < rows; ++row) std::memcpy(tile + row * 64, w + row * k, static_cast<size_t>(depth) * 2);
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

// One step along k: W tiles come from `w` with row stride `stride` bytes, `apart` bytes from tile to tile.
template <int kWTiles, int kXTiles>
inline void step(const std::byte* w, int64_t stride, int64_t apart, const std::byte* x, int64_t x_apart) {
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
void block(const uint16_t* w, int64_t rows, int64_t k, const std::byte* x, int64_t m, const float* bias, float* y,
           int64_t ldy, const std::byte* soon) {
  static_assert(kWTiles * kXTiles <= 4);
  const int64_t steps = steps_of(k);
  const int64_t stride = k * 2;
  const int64_t apart = kTileRows * stride;
  const int64_t x_apart = steps * kTileBytes;
  const bool is_whole = rows == kWTiles * kTileRows;
  const int64_t direct = is_whole ? k / kTileDepth : 0;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const auto* bytes = reinterpret_cast<const std::byte*>(w);
  for (int64_t s = 0; s < direct; ++s) {
    if (soon)
      for (int64_t line = 0; line < kWTiles * 16; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(soon + (s * kWTiles * 16 + line) * 64), _MM_HINT_T1);
    step<kWTiles, kXTiles>(bytes + s * 64, stride, apart, x + s * kTileBytes, x_apart);
  }
  alignas(64) std::byte staged[kWTiles * kTileBytes];
  for (int64_t s = direct; s < steps; ++s) {
    for (int64_t tile = 0; tile < kWTiles; ++tile)
      stage(w + tile * kTileRows * k + s * kTileDepth, k, std::clamp<int64_t>(rows - tile * kTileRows, 0, kTileRows),
            std::min(kTileDepth, k - s * kTileDepth), staged + tile * kTileBytes);
    step<kWTiles, kXTiles>(staged, 64, kTileBytes, x + s * kTileBytes, x_apart);
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
        put(sums + (w_tile * kXTiles + x_tile) * 256, std::min(kTileRows, rows - row), std::min(kTileRows, m - i),
            bias ? bias + row : nullptr, y + i * ldy + row, ldy);
    }
}
}  // namespace

int64_t amx_tile_columns(int64_t m) noexcept { return (m + kTileRows - 1) / kTileRows; }

int64_t amx_scratch_bytes(int64_t m, int64_t k) noexcept { return amx_tile_columns(m) * steps_of(k) * kTileBytes; }

void amx_arrange(const uint16_t* x, int64_t m, int64_t k, int64_t ld, int64_t begin, int64_t end, std::byte* scratch) noexcept {
  const int64_t steps = steps_of(k);
  for (int64_t column = begin; column < end; ++column) {
    const int64_t tile = column / steps, s = column % steps;
    const auto depth = static_cast<unsigned>(std::min(kTileDepth, k - s * kTileDepth));
    const auto mask = static_cast<__mmask32>((uint64_t{1} << depth) - 1);
    __m512i rows[16];
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = tile * kTileRows + i;
      rows[i] = row < m ? _mm512_maskz_loadu_epi16(mask, x + row * ld + s * kTileDepth) : _mm512_setzero_si512();
    }
    transpose16(rows);
    std::byte* to = scratch + column * kTileBytes;
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + 64 * i, rows[i]);
  }
}

void amx_linear_rows(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k, const std::byte* arranged, int64_t m,
                     const float* bias, float* y, int64_t ldy) noexcept {
  const TileConfig config;
  _tile_loadconfig(&config);
  const int64_t tile_stride = steps_of(k) * kTileBytes;
  const auto at = [&](const float* p, int64_t row) { return p ? p + row : nullptr; };
  for (int64_t row = row_begin; row < row_end; row += kAmxRowBlock) {
    const int64_t rows = std::min(kAmxRowBlock, row_end - row);
    // The next rows come into L2 in the order of the memory while these are multiplied.
    const bool has_next = rows == kAmxRowBlock && row_end - row >= 2 * kAmxRowBlock;
    for (int64_t i = 0; i < m; i += 32) {
      const std::byte* x = arranged + i / kTileRows * tile_stride;
      float* to = y + i * ldy;
      const int64_t left = std::min<int64_t>(32, m - i);
      const auto* next = has_next && i == 0 ? reinterpret_cast<const std::byte*>(w + (row + kAmxRowBlock) * k) : nullptr;
      if (left <= 16 && rows == kAmxRowBlock) {
        block<4, 1>(w + row * k, rows, k, x, left, at(bias, row), to + row, ldy, next);
      } else {
        for (int64_t part = 0; part < rows; part += 32) {
          const int64_t some = std::min<int64_t>(32, rows - part);
          const std::byte* soon = next ? next + part * k * 2 : nullptr;
          if (left > 16)
            block<2, 2>(w + (row + part) * k, some, k, x, left, at(bias, row + part), to + row + part, ldy, soon);
          else
            for (int64_t tile = part; tile < part + some; tile += 16)
              block<1, 1>(w + (row + tile) * k, std::min<int64_t>(16, part + some - tile), k, x, left, at(bias, row + tile),
                          to + row + tile, ldy, nullptr);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace sluice::kernels
