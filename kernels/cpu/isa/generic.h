#pragma once
// The primitives in plain loops and the compiler's own vector types, for any processor; also what a
// header of another instruction set has to offer: the same names. Vectors are of kLanes 32-bit
// lanes, aligned to bytes: weights are multiplied where they lie in a checkpoint, whose header may
// have any length.
#include "kernels/cpu/isa/common.h"

#define SLUICE_ISA_CHOSEN

namespace sluice::kernels {
namespace {

constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;
constexpr int kTileRows = 3;  // of x, beside two vectors: 12 sums of half a vector in 16 registers

typedef float VecF __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

// load and store at any address; splat: the same number in each lane.
inline VecF load(const float* p) { return *reinterpret_cast<const VecF*>(p); }
inline void store(float* p, VecF v) { *reinterpret_cast<VecF*>(p) = v; }
inline VecF splat(float v) { return v - VecF{}; }  // keeps -0

// sum_lanes: of all lanes, in whatever order is fast; max_lane: the largest one.
inline float sum_lanes(VecF v) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}
inline float max_lane(VecF v) {
  float maximum = v[0];
  for (int lane = 1; lane < kLanes; ++lane) maximum = v[lane] > maximum ? v[lane] : maximum;
  return maximum;
}

// To the nearest whole numbers, ties to even.
inline VecF nearest(VecF v) {
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_rintf(v[i]);
  return v;
}

// sum + a b.
inline VecF add_product(VecF sum, VecF a, VecF b) { return sum + a * b; }

// kLanes 16-bit numbers to 32 bits and back.
inline VecU load_halves(const void* p) {
  return __builtin_convertvector(*static_cast<const VecH*>(p), VecU);
}
inline VecH narrow_halves(VecU v) { return __builtin_convertvector(v, VecH); }

// The low bytes of whole numbers from -128 to 127.
inline void store_bytes(void* p, VecI v) {
  for (int i = 0; i < kLanes; ++i) static_cast<int8_t*>(p)[i] = static_cast<int8_t>(v[i]);
}

// kLanes f16 values, which need no alignment.
inline VecF load_f16(const void* p) {
  VecF v;
  for (int i = 0; i < kLanes; ++i) v[i] = scalar_f16(static_cast<const char*>(p) + 2 * i);
  return v;
}
inline void store_f16(void* p, VecF v) {
  uint16_t out[kLanes];
  for (int i = 0; i < kLanes; ++i) out[i] = f32_to_f16(v[i]);
  __builtin_memcpy(p, out, sizeof out);
}

// values[the low four bits of each lane], and those bits as f32.
inline VecF look_up(const float (&values)[16], VecU index) {
  VecF out;
  for (int i = 0; i < kLanes; ++i) out[i] = values[index[i] & 15];
  return out;
}
inline VecF nibbles(VecU v) { return __builtin_convertvector((VecI)(v & 15u), VecF); }

// Products of codes, four unsigned bytes a lane, with four signed bytes of x, added up in each
// lane. kHasParts: sums of a few of them are kept narrower at first (isa/avx2.h), else `step` adds
// them; kIsNarrow: codes are below 16.
struct ByteDots {
  static constexpr bool kHasParts = false;
  template <bool kIsNarrow>
  static VecI step(VecI sum, VecU codes, int32_t x) {
    for (int i = 0; i < 4; ++i)
      sum += (VecI)((codes >> (8 * i)) & 255u) * static_cast<int8_t>(x >> (8 * i));
    return sum;
  }
};
// The same with two numbers of 16 bits each, where that is how int8 x meets 8-bit codes.
using ShortDots = void;

// The ends of e^x: x that is not too low to count, and p times the power of two in `shifted` (x /
// ln 2 + kToWhole), or 0 where x is too low.
inline VecF countable(VecF x) { return x < splat(kLowestExponent) ? splat(kLowestExponent) : x; }
inline VecF times_power(VecF p, VecF shifted, VecF x) {
  const VecF power = (VecF)(((VecI)shifted - (0x4b400000 - 127)) << 23);
  return x < splat(kLowestExponent) ? splat(0.0f) : p * power;
}

// Sums of kLanes vectors at once: lane i of the result is the sum of v[i]. Uses up v.
inline VecF sum_each(VecF (&v)[kLanes]) {
  VecF sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = sum_lanes(v[i]);
  return sums;
}

// kLanes rows of kLanes elements, turned: to[col * stride + row]. From: generic/vector.h.
template <typename From>
inline void turn(const char* const* rows, int64_t offset, float* to, int64_t stride) {
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j)
      to[j * stride + i] = From::one(rows[i] + offset + j * From::kBytes);
}

}  // namespace
}  // namespace sluice::kernels
