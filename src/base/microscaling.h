#pragma once
// The numbers of MXFP4 (OCP Microscaling Formats 1.0): e2m1 codes and e8m0 scales. For readers of
// checkpoints and for kernels.
#include <cstdint>

namespace sluice {

/// The 16 values of e2m1 by code, the highest bit being the sign.
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// A power of two as its e8m0 byte, and the byte's value; 255 is no number. f32 has them all.
constexpr uint8_t e8m0_of(float power) noexcept {
  return static_cast<uint8_t>(__builtin_bit_cast(uint32_t, power) >> 23);
}
constexpr float e8m0_value(uint8_t byte) noexcept {
  const uint32_t bits = byte == 0 ? 1u << 22 : byte == 255 ? 0x7fc00000u : uint32_t{byte} << 23;
  return __builtin_bit_cast(float, bits);
}

}  // namespace sluice
