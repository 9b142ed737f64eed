#pragma once
// The primitives of AVX-512 with BF16 and VNNI: isa/avx512_vectors.h, and dot products of bytes and
// of pairs of bf16. What is built on the latter, kernels/cpu/avx512_bf16/ has.
#include "kernels/cpu/isa/avx512_vectors.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

struct ByteDots {
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static VecI step(VecI sum, VecU codes, int32_t x) {
    return (VecI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, _mm512_set1_epi32(x));
  }
};

// Each lane's sum grows by four products of an unsigned and a signed byte. (As an instruction of
// its own: of the intrinsic gcc 12 copies the sum before and after. So below.)
inline VecI add_byte_products(VecI sum, VecI codes, VecI digits) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
  return sum;
}

inline __m512bh load_bh(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

// And by two products of bf16; for tiles that fill the registers.
inline __m512 add_bf16_products(__m512 sum, __m512bh a, __m512bh b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

}  // namespace
}  // namespace sluice::kernels
