#pragma once
// What vectors of any instruction set can do, on its primitives: conversions of each type, e^x.
#include "kernels/cpu/isa/chosen.h"

namespace sluice::kernels {
namespace {

inline VecF max_of(VecF a, VecF b) { return a > b ? a : b; }

inline VecF load_bf16(const void* p) { return (VecF)(load_halves(p) << 16); }

// f32 to bf16, round to nearest even; NaN stays NaN.
inline VecH round_bf16(VecF v) {
  const VecU bits = (VecU)v;
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecU quiet = (bits >> 16) | 0x40u;
  const VecU is_nan = (VecU)((bits & 0x7fffffffu) > (VecU{} + 0x7f800000u));
  return narrow_halves((quiet & is_nan) | (rounded & ~is_nan));
}

// How weights and KV of each type become vectors, and single elements f32.
struct FromF32 {
  static constexpr DType kDType = DType::kF32;
  static constexpr int64_t kBytes = 4;
  static VecF vec(const void* p) { return load(static_cast<const float*>(p)); }
  static float one(const void* p) { return scalar_f32(p); }
};
struct FromF16 {
  static constexpr DType kDType = DType::kF16;
  static constexpr int64_t kBytes = 2;
  static VecF vec(const void* p) { return load_f16(p); }
  static float one(const void* p) { return scalar_f16(p); }
};
struct FromBf16 {
  static constexpr DType kDType = DType::kBF16;
  static constexpr int64_t kBytes = 2;
  static VecF vec(const void* p) { return load_bf16(p); }
  static float one(const void* p) { return scalar_bf16(p); }
};

// e^x for x <= 88, relative error < 2e-7; 0 below -87 (so that e^-inf is 0); NaN stays NaN.
inline VecF exp_vec(VecF x) {
  const VecF bounded = countable(x);
  const VecF shifted = bounded * 1.44269504088896341f + kToWhole;
  const VecF r_high = bounded - (shifted - kToWhole) * 0.693145751953125f;
  const VecF r = r_high - (shifted - kToWhole) * 1.42860677e-6f;
  VecF p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return times_power(p, shifted, x);
}

inline float exp_one(float x) { return exp_vec(splat(x))[0]; }

}  // namespace
}  // namespace sluice::kernels
