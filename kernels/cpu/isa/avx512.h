#pragma once
// The primitives of AVX-512 (F, BW, VL, DQ): isa/avx512_vectors.h, and products of bytes without an
// instruction for them.
#include "kernels/cpu/isa/avx512_vectors.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

struct ByteDots {
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static VecI step(VecI sum, VecU codes, int32_t x) {
    const __m512i w = (__m512i)codes, v = _mm512_set1_epi32(x);
    if constexpr (kIsNarrow)
      return sum + (VecI)_mm512_madd_epi16(_mm512_maddubs_epi16(w, v), _mm512_set1_epi16(1));
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8));
    return sum + (VecI)even +
           (VecI)_mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(v, 8));
  }
};

}  // namespace
}  // namespace sluice::kernels
