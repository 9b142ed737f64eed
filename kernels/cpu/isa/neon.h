#pragma once
// The primitives of 64-bit ARM with products of bytes, Armv8.2's dotprod (what they mean:
// isa/generic.h). A vector is two registers: what the compiler's own vectors can do it does in
// halves.
#include <arm_neon.h>

#include "kernels/cpu/isa/common.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

constexpr int kLanes = 8;
constexpr int kVectorRegisters = 32;
constexpr int kTileRows = 6;  // 24 sums of half a vector in 32 registers

typedef float VecF __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

// The registers of a vector, and a vector of two.
template <typename Vec>
inline auto low_of(Vec v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3);
}
template <typename Vec>
inline auto high_of(Vec v) {
  return __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
inline VecF joined(float32x4_t low, float32x4_t high) {
  return (VecF)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
inline VecI joined(int32x4_t low, int32x4_t high) {
  return (VecI)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
inline VecU joined(uint32x4_t low, uint32x4_t high) {
  return (VecU)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

inline VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
inline void store(float* p, VecF v) { *reinterpret_cast<VecF*>(p) = v; }
inline VecF splat(float v) { return v - VecF{}; }  // keeps -0

inline float sum_lanes(VecF v) {
  return vaddvq_f32((float32x4_t)low_of(v) + (float32x4_t)high_of(v));
}
inline float max_lane(VecF v) {
  return vmaxvq_f32(vmaxq_f32((float32x4_t)low_of(v), (float32x4_t)high_of(v)));
}

inline VecF nearest(VecF v) {
  return joined(vrndnq_f32((float32x4_t)low_of(v)), vrndnq_f32((float32x4_t)high_of(v)));
}

// (Fused by the compiler, half by half. gcc 12 fails on instructions of its own here.)
inline VecF add_product(VecF sum, VecF a, VecF b) { return sum + a * b; }

inline VecU load_halves(const void* p) {
  const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
  return joined(vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves));
}
inline VecH narrow_halves(VecU v) {
  return (VecH)vcombine_u16(vmovn_u32((uint32x4_t)low_of(v)), vmovn_u32((uint32x4_t)high_of(v)));
}

inline void store_bytes(void* p, VecI v) {
  const int16x8_t halves =
      vcombine_s16(vmovn_s32((int32x4_t)low_of(v)), vmovn_s32((int32x4_t)high_of(v)));
  vst1_s8(static_cast<int8_t*>(p), vmovn_s16(halves));
}

inline VecF load_f16(const void* p) {
  const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
  return joined(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves));
}
inline void store_f16(void* p, VecF v) {
  const float16x8_t halves =
      vcombine_f16(vcvt_f16_f32((float32x4_t)low_of(v)), vcvt_f16_f32((float32x4_t)high_of(v)));
  vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_f16(halves));
}

// Bytes of the table are looked up, four of each number.
inline VecF look_up(const float (&values)[16], VecU index) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  const uint8x16x4_t table{
      {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  const VecU at = (index & 15u) * 0x04040404u + 0x03020100u;
  const auto found = [&](uint32x4_t half) {
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(half)));
  };
  return joined(found((uint32x4_t)low_of(at)), found((uint32x4_t)high_of(at)));
}
inline VecF nibbles(VecU v) { return __builtin_convertvector((VecI)(v & 15u), VecF); }

// The instruction multiplies signed bytes: codes of 8 bits go in less 128, and 128 times x comes
// back on top.
struct ByteDots {
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static VecI step(VecI sum, VecU codes, int32_t x) {
    const int8x16_t digits = vreinterpretq_s8_s32(vdupq_n_s32(x));
    const auto half = [&](int32x4_t part, uint32x4_t word) {
      if constexpr (kIsNarrow) return vdotq_s32(part, vreinterpretq_s8_u32(word), digits);
      const int8x16_t shifted = vreinterpretq_s8_u32(word ^ 0x80808080u);
      const int32x4_t sums = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), digits);
      return vdotq_s32(part + (sums << 7), shifted, digits);
    };
    return joined(half((int32x4_t)low_of(sum), (uint32x4_t)low_of(codes)),
                  half((int32x4_t)high_of(sum), (uint32x4_t)high_of(codes)));
  }
};
using ShortDots = void;

inline VecF countable(VecF x) { return x < splat(kLowestExponent) ? splat(kLowestExponent) : x; }
inline VecF times_power(VecF p, VecF shifted, VecF x) {
  const VecF power = (VecF)(((VecI)shifted - (0x4b400000 - 127)) << 23);
  return x < splat(kLowestExponent) ? splat(0.0f) : p * power;
}

inline VecF sum_each(VecF (&v)[kLanes]) {
  float32x4_t quads[kLanes];
  for (int i = 0; i < kLanes; ++i)
    quads[i] = (float32x4_t)low_of(v[i]) + (float32x4_t)high_of(v[i]);
  const auto four = [&](int first) {
    return vpaddq_f32(vpaddq_f32(quads[first], quads[first + 1]),
                      vpaddq_f32(quads[first + 2], quads[first + 3]));
  };
  return joined(four(0), four(4));
}

template <typename From>
inline void turn(const char* const* rows, int64_t offset, float* to, int64_t stride) {
  for (int quarter = 0; quarter < kLanes; quarter += 4) {
    float32x4_t a[4], b[4];  // columns 0 to 3 and 4 to 7 of four rows
    for (int i = 0; i < 4; ++i) {
      const VecF row = From::vec(rows[quarter + i] + offset);
      a[i] = (float32x4_t)low_of(row);
      b[i] = (float32x4_t)high_of(row);
    }
    const auto put = [&](float32x4_t(&r)[4], int column) {
      const float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1]));
      const float64x2_t t1 = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
      const float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3]));
      const float64x2_t t3 = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
      float* const out = to + column * stride + quarter;
      vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(t0, t2)));
      vst1q_f32(out + stride, vreinterpretq_f32_f64(vtrn1q_f64(t1, t3)));
      vst1q_f32(out + 2 * stride, vreinterpretq_f32_f64(vtrn2q_f64(t0, t2)));
      vst1q_f32(out + 3 * stride, vreinterpretq_f32_f64(vtrn2q_f64(t1, t3)));
    };
    put(a, 0);
    put(b, 4);
  }
}

}  // namespace
}  // namespace sluice::kernels
