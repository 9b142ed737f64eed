#pragma once
// What isa/avx512.h and isa/avx512_bf16.h share of the primitives: all but products of bytes (what
// they mean: isa/generic.h).
#include <immintrin.h>

#include "kernels/cpu/isa/common.h"
#include "kernels/cpu/isa/transpose16.h"

namespace sluice::kernels {
namespace {

constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;
constexpr int kTileRows = 12;  // 24 sums in 32 registers

typedef float VecF __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

inline VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
inline void store(float* p, VecF v) { *reinterpret_cast<VecF*>(p) = v; }
inline VecF splat(float v) { return v - VecF{}; }  // keeps -0

inline float sum_lanes(VecF v) { return _mm512_reduce_add_ps((__m512)v); }
inline float max_lane(VecF v) { return _mm512_reduce_max_ps((__m512)v); }
// The largest lane of each of four vectors.
inline __m128 max_each(const VecF (&v)[4]) {
  const auto pair = [](VecF a, VecF b) {
    return _mm512_max_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b),
                         _mm512_unpackhi_ps((__m512)a, (__m512)b));
  };
  const __m512d low = _mm512_castps_pd(pair(v[0], v[1])), high = _mm512_castps_pd(pair(v[2], v[3]));
  const __m512 four = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  const __m256 two = _mm256_max_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return _mm_max_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
}

inline VecF nearest(VecF v) {
  return (VecF)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEAREST_INT);
}

inline VecF add_product(VecF sum, VecF a, VecF b) { return sum + a * b; }

// (The compiler does the next three in halves or one by one.)
inline VecU load_halves(const void* p) {
  return (VecU)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline VecH narrow_halves(VecU v) { return (VecH)_mm512_cvtepi32_epi16((__m512i)v); }
inline void store_bytes(void* p, VecI v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)v));
}

inline VecF load_f16(const void* p) {
  return (VecF)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline void store_f16(void* p, VecF v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, 0));
}

inline VecF look_up(const float (&values)[16], VecU index) {
  return (VecF)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(values));
}
inline VecF nibbles(VecU v) {
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (VecF)_mm512_permutexvar_ps((__m512i)v, values);  // takes the low 4 bits
}

using ShortDots = void;

inline VecF countable(VecF x) { return x; }  // whatever comes of the others is masked in the end
inline VecF times_power(VecF p, VecF shifted, VecF x) {
  const __mmask16 counts =
      _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(kLowestExponent), _CMP_NLT_UQ);
  return (VecF)_mm512_maskz_scalef_ps(counts, (__m512)p, (__m512)(shifted - kToWhole));
}

inline VecF sum_each(VecF (&v)[16]) {
  __m512 pairs[8];
  for (int i = 0; i < 8; ++i) {
    const __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  __m512 quads[4];  // of each 128 bits: lanes 0-3 are sums of v[4i .. 4i + 3]
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88),
                                   _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88),
                                    _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return (VecF)_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                             _mm512_shuffle_f32x4(low, high, 0xdd));
}

// Four elements of each of four rows.
inline __m256i load_four_halves(const char* a, const char* b, const char* c, const char* d) {
  const auto four = [](const char* p) { return _mm_loadl_epi64((const __m128i*)p); };
  __m256i out = _mm256_castsi128_si256(four(a));
  out = _mm256_mask_broadcastq_epi64(out, 2, four(b));
  out = _mm256_mask_broadcastq_epi64(out, 4, four(c));
  return _mm256_mask_broadcastq_epi64(out, 8, four(d));
}
template <typename From>
inline __m512i load_fours(const char* a, const char* b, const char* c, const char* d) {
  if constexpr (From::kDType == DType::kF32)
    return load_quarters(a, b, c, d);
  else if constexpr (From::kDType == DType::kF16)
    return (__m512i)_mm512_cvtph_ps(load_four_halves(a, b, c, d));
  else
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_four_halves(a, b, c, d)), 16);
}

template <typename From>
inline void turn(const char* const* rows, int64_t offset, float* to, int64_t stride) {
  transpose16(
      [&](int r, int column) {
        const int64_t at = offset + column * From::kBytes;
        return load_fours<From>(rows[r] + at, rows[r + 4] + at, rows[r + 8] + at,
                                rows[r + 12] + at);
      },
      [&](int i, __m512i column) { _mm512_storeu_si512(to + i * stride, column); });
}

}  // namespace
}  // namespace sluice::kernels
