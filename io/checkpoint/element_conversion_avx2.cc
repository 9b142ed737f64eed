#include "io/checkpoint/element_conversion_avx2.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

// The attribute instead of a compiler flag: inline functions of shared headers must not be compiled
// for AVX2.
#define SLUICE_AVX2 __attribute__((target("avx2,f16c")))

namespace sluice::io {

namespace {

struct F32 {
  static constexpr int64_t kBytes = 4;
  SLUICE_AVX2 static __m256 load(const std::byte* in) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(in));
  }
  SLUICE_AVX2 static void store(__m256 values, std::byte* out) {
    _mm256_storeu_ps(reinterpret_cast<float*>(out), values);
  }
};

// The low halves of eight 32-bit lanes.
SLUICE_AVX2 inline void store_low_halves(__m256i lanes, std::byte* out) {
  const __m256i packed = _mm256_packus_epi32(lanes, lanes);  // within each 128-bit half
  const __m256i joined = _mm256_permute4x64_epi64(packed, 0b1000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(joined));
}

struct BF16 {
  static constexpr int64_t kBytes = 2;
  SLUICE_AVX2 static __m256 load(const std::byte* in) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  SLUICE_AVX2 static void store(__m256 values, std::byte* out) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    store_low_halves(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan)), out);
  }
};

struct F16 {
  static constexpr int64_t kBytes = 2;
  SLUICE_AVX2 static __m256 load(const std::byte* in) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  }
  SLUICE_AVX2 static void store(__m256 values, std::byte* out) {
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    // The instruction keeps a NaN's payload; the scalar function does not. Clearing it leaves
    // 0x7e00 and the sign.
    const __m256i sign =
        _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(INT32_MIN));
    const __m256i plain_nan = _mm256_or_si256(sign, _mm256_set1_epi32(0x7fc00000));
    const __m256 clean =
        _mm256_blendv_ps(values, _mm256_castsi256_ps(plain_nan), _mm256_castsi256_ps(is_nan));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

template <typename From, typename To>
SLUICE_AVX2 bool convert_all(const std::byte* in, std::byte* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 8)
    To::store(From::load(in + i * From::kBytes), out + i * To::kBytes);
  return true;
}

}  // namespace

bool has_avx2_conversion() noexcept {
  // Not every compiler's __builtin_cpu_supports knows F16C: it is asked of the CPU itself.
  static const bool has_both = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx2") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return has_both;
}

bool convert_avx2(DType from, const std::byte* in, DType to, std::byte* out,
                  int64_t count) noexcept {
  if (from == DType::kF32 && to == DType::kF16) return convert_all<F32, F16>(in, out, count);
  if (from == DType::kF32 && to == DType::kBF16) return convert_all<F32, BF16>(in, out, count);
  if (from == DType::kF16 && to == DType::kF32) return convert_all<F16, F32>(in, out, count);
  if (from == DType::kF16 && to == DType::kBF16) return convert_all<F16, BF16>(in, out, count);
  if (from == DType::kBF16 && to == DType::kF32) return convert_all<BF16, F32>(in, out, count);
  if (from == DType::kBF16 && to == DType::kF16) return convert_all<BF16, F16>(in, out, count);
  return false;
}

}  // namespace sluice::io

#else

namespace sluice::io {
bool has_avx2_conversion() noexcept { return false; }
bool convert_avx2(DType, const std::byte*, DType, std::byte*, int64_t) noexcept { return false; }
}  // namespace sluice::io

#endif
