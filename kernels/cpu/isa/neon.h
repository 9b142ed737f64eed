#pragma once
// The primitives of 64-bit ARM with products of bytes, Armv8.2's dotprod (what they mean:
// isa/generic.h). A vector is one register: gcc keeps larger ones in memory.
#include <arm_neon.h>

#include "kernels/cpu/isa/common.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

constexpr int kLanes = 4;
constexpr int kVectorRegisters = 32;
constexpr int kTileRows = 12;  // 24 sums in 32 registers

typedef float VecF __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

inline VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
inline void store(float* p, VecF v) { *reinterpret_cast<VecF*>(p) = v; }
inline VecF splat(float v) { return v - VecF{}; }  // keeps -0

inline float sum_lanes(VecF v) { return vaddvq_f32((float32x4_t)v); }
inline float max_lane(VecF v) { return vmaxvq_f32((float32x4_t)v); }

inline VecF nearest(VecF v) { return (VecF)vrndnq_f32((float32x4_t)v); }

inline VecF add_product(VecF sum, VecF a, VecF b) { return sum + a * b; }

inline VecU load_halves(const void* p) {
  return (VecU)vmovl_u16(vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p))));
}
inline VecH narrow_halves(VecU v) { return (VecH)vmovn_u32((uint32x4_t)v); }

inline void store_bytes(void* p, VecI v) {
  const int16x4_t halves = vmovn_s32((int32x4_t)v);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
  __builtin_memcpy(p, &bytes, kLanes);
}

inline VecF load_f16(const void* p) {
  return (VecF)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p))));
}
inline void store_f16(void* p, VecF v) {
  vst1_u8(static_cast<uint8_t*>(p), vreinterpret_u8_f16(vcvt_f16_f32((float32x4_t)v)));
}

// Bytes of the table are looked up, four of each number.
inline VecF look_up(const float (&values)[16], VecU index) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  const uint8x16x4_t table{
      {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  const VecU at = (index & 15u) * 0x04040404u + 0x03020100u;
  return (VecF)vqtbl4q_u8(table, (uint8x16_t)at);
}
inline VecF nibbles(VecU v) { return __builtin_convertvector((VecI)(v & 15u), VecF); }

// The instruction multiplies signed bytes: codes of 8 bits go in less 128, and 128 times x comes
// back on top.
struct ByteDots {
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static VecI step(VecI sum, VecU codes, int32_t x) {
    const int8x16_t digits = vreinterpretq_s8_s32(vdupq_n_s32(x));
    if constexpr (kIsNarrow) return (VecI)vdotq_s32((int32x4_t)sum, (int8x16_t)codes, digits);
    const int32x4_t sums = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), digits);
    return (VecI)vdotq_s32((int32x4_t)sum + (sums << 7), (int8x16_t)(codes ^ 0x80808080u), digits);
  }
};
using ShortDots = void;

inline VecF countable(VecF x) { return x < splat(kLowestExponent) ? splat(kLowestExponent) : x; }
inline VecF times_power(VecF p, VecF shifted, VecF x) {
  const VecF power = (VecF)(((VecI)shifted - (0x4b400000 - 127)) << 23);
  return x < splat(kLowestExponent) ? splat(0.0f) : p * power;
}

inline VecF sum_each(VecF (&v)[kLanes]) {
  return (VecF)vpaddq_f32(vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]),
                          vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}

template <typename From>
inline void turn(const char* const* rows, int64_t offset, float* to, int64_t stride) {
  float32x4_t r[kLanes];
  for (int i = 0; i < kLanes; ++i) r[i] = (float32x4_t)From::vec(rows[i] + offset);
  const float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1]));
  const float64x2_t t1 = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
  const float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3]));
  const float64x2_t t3 = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
  store(to, (VecF)vtrn1q_f64(t0, t2));
  store(to + stride, (VecF)vtrn1q_f64(t1, t3));
  store(to + 2 * stride, (VecF)vtrn2q_f64(t0, t2));
  store(to + 3 * stride, (VecF)vtrn2q_f64(t1, t3));
}

}  // namespace
}  // namespace sluice::kernels
