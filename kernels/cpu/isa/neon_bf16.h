#pragma once
// The primitives of 64-bit ARM with dot products of bf16, Armv8.6's BF16 (optional from Armv8.2
// on): isa/neon.h, and BFDOT and BFMMLA. What is built on them, kernels/cpu/neon_bf16/ has.
//
// Their sums: products of two bf16 are exact; two of them are added, then the sum so far, each time
// rounded to odd (to the neighbour whose last bit is 1), within one unit in the last place where
// other additions are within half of one. BFMMLA is two BFDOTs one after the other, so both give
// the same bits of the same order. Numbers below 2^-126 count as 0, and NaN loses its payload,
// whatever FPCR says. With Armv9.2's EBF16, which a program has to switch on, all that is as in
// f32.
#include "kernels/cpu/isa/neon.h"

namespace sluice::kernels {
namespace {

// Eight bf16 at any address, or `count` of them before zeros.
inline bfloat16x8_t load_eight(const void* p) {
  return vreinterpretq_bf16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}
inline bfloat16x8_t load_some(const void* p, int64_t count) {
  uint16_t values[8] = {};
  for (int64_t i = 0; i < count; ++i)
    __builtin_memcpy(values + i, static_cast<const char*>(p) + 2 * i, 2);
  return load_eight(values);
}

// Four bf16 of two rows, one behind the other: the first four of `a` and `b`, and the others.
inline bfloat16x8_t first_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip1q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}
inline bfloat16x8_t last_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip2q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}

// BFMMLA's sums are two rows of x beside two of w: those of the first row of x beside four of w,
// and of the second.
inline VecF first_row(float32x4_t a, float32x4_t b) {
  return (VecF)vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
}
inline VecF second_row(float32x4_t a, float32x4_t b) {
  return (VecF)vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
}

}  // namespace
}  // namespace sluice::kernels
