#pragma once
// The primitives of AVX2 with FMA and F16C (what they mean: isa/generic.h).
#include <immintrin.h>

#include "kernels/cpu/isa/common.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;
constexpr int kTileRows = 6;  // 12 sums in 16 registers

typedef float VecF __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

inline VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
inline void store(float* p, VecF v) { *reinterpret_cast<VecF*>(p) = v; }
inline VecF splat(float v) { return v - VecF{}; }  // keeps -0

inline float sum_lanes(VecF v) {
  const __m128 four =
      _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lane(VecF v) {
  const __m128 four =
      _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline VecF nearest(VecF v) {
  return (VecF)_mm256_round_ps((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// (As an instruction of its own: gcc 12 gathers products before it adds them, and spills sums. So
// below.)
inline VecF add_product(VecF sum, VecF a, VecF b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}

// (The compiler does the next three in halves or one by one.)
inline VecU load_halves(const void* p) {
  return (VecU)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline VecH narrow_halves(VecU v) {
  const __m256i packed = _mm256_packus_epi32((__m256i)(v & 0xffffu), _mm256_setzero_si256());
  return (VecH)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x8));
}
inline void store_bytes(void* p, VecI v) {
  const __m256i order =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i low = _mm256_shuffle_epi8((__m256i)v, order);
  _mm_storel_epi64(static_cast<__m128i*>(p),
                   _mm_or_si128(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

inline VecF load_f16(const void* p) {
  return (VecF)_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline void store_f16(void* p, VecF v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, 0));
}

inline VecF look_up(const float (&values)[16], VecU index) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), (__m256i)index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + 8), (__m256i)index);
  return (VecF)_mm256_blendv_ps(low, high, (__m256)(index << 28));
}
inline VecF nibbles(VecU v) { return __builtin_convertvector((VecI)(v & 15u), VecF); }

// Each 16-bit sum grows by two products of an unsigned and a signed byte; each 32-bit one by two of
// 16 bits.
typedef int16_t VecS __attribute__((vector_size(32)));
inline void add_pairs(VecS& sum, __m256i unsigned_bytes, __m256i bytes) {
  __m256i pairs;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
          : "+x"(sum), "=&x"(pairs)
          : "x"(unsigned_bytes), "x"(bytes));
}
inline void add_pairs(VecI& sum, __m256i a, __m256i b) {
  __m256i pairs;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(pairs) : "x"(a), "x"(b));
}
// 16-bit sums, two added to one of 32.
inline VecI whole_of(VecS sum) {
  return (VecI)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
}

// For 4-bit codes alone: eight vectors' pairs fit 16 bits, 8 x 2 x 15 x 127.
struct ByteDots {
  static constexpr bool kHasParts = true;
  static constexpr int kPartLines = 4;
  using Part = VecS;
  static Part add(Part part, VecU codes, int32_t x) {
    add_pairs(part, (__m256i)codes, _mm256_set1_epi32(x));
    return part;
  }
};
struct ShortDots {
  static VecI step(VecI sum, VecU codes, int32_t x) {
    add_pairs(sum, (__m256i)codes, _mm256_set1_epi32(x));
    return sum;
  }
  // 16 signed bytes as 16 bits each.
  template <typename Bytes>
  static void put_bytes(void* to, Bytes bytes) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_cvtepi8_epi16((__m128i)bytes));
  }
  static VecU odd_bytes(VecU word) { return (VecU)_mm256_srli_epi16((__m256i)word, 8); }
};

inline VecF countable(VecF x) { return x < splat(kLowestExponent) ? splat(kLowestExponent) : x; }
inline VecF times_power(VecF p, VecF shifted, VecF x) {
  const VecF power = (VecF)(((VecI)shifted - (0x4b400000 - 127)) << 23);
  return x < splat(kLowestExponent) ? splat(0.0f) : p * power;
}

inline VecF sum_each(VecF (&v)[8]) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]),
                                  _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[4], (__m256)v[5]),
                                  _mm256_hadd_ps((__m256)v[6], (__m256)v[7]));
  return (VecF)_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20),
                             _mm256_permute2f128_ps(a, b, 0x31));
}

template <typename From>
inline void turn(const char* const* rows, int64_t offset, float* to, int64_t stride) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = (__m256)From::vec(rows[i] + offset);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

}  // namespace
}  // namespace sluice::kernels
