#pragma once
// A 16 x 16 block of 32-bit elements turned in registers. For files compiled for AVX-512 only.
#include <immintrin.h>

namespace sluice::kernels {
namespace {

// transpose16: r[i] is row i, then column i.
inline void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// The same from memory with half of the shuffles, since masked loads place the quarters of
// registers: four(r, c) are elements [c, c + 4) of rows r, r + 4, r + 8 and r + 12. put(i, column)
// takes column i.
template <typename Four, typename Put>
inline void transpose16(const Four& four, const Put& put) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = four(0, i), b = four(1, i), c = four(2, i), d = four(3, i);
    const __m512i low_ab = _mm512_unpacklo_epi32(a, b), high_ab = _mm512_unpackhi_epi32(a, b);
    const __m512i low_cd = _mm512_unpacklo_epi32(c, d), high_cd = _mm512_unpackhi_epi32(c, d);
    put(i, _mm512_unpacklo_epi64(low_ab, low_cd));
    put(i + 1, _mm512_unpackhi_epi64(low_ab, low_cd));
    put(i + 2, _mm512_unpacklo_epi64(high_ab, high_cd));
    put(i + 3, _mm512_unpackhi_epi64(high_ab, high_cd));
  }
}

// 16 bytes at each address.
inline __m512i load_quarters(const void* first, const void* second, const void* third,
                             const void* fourth) {
  const auto quarter = [](const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  };
  __m512i out = _mm512_castsi128_si512(quarter(first));
  out = _mm512_mask_broadcast_i32x4(out, 0x00f0, quarter(second));
  out = _mm512_mask_broadcast_i32x4(out, 0x0f00, quarter(third));
  return _mm512_mask_broadcast_i32x4(out, 0xf000, quarter(fourth));
}

}  // namespace
}  // namespace sluice::kernels
