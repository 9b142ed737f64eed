#pragma once
// Element types of weights, KV and activations, and exact scalar conversions between them and f32.
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

/// Stored on disk (packed store index, by name): never rename.
enum class DType : uint8_t { kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool, kF64, kF8E4M3 };

/// Bytes of one element.
int64_t dtype_bytes(DType type) noexcept;
/// "f32", "f16", "bf16", "i64", ...
std::string_view dtype_name(DType type) noexcept;
/// The inverse of dtype_name; also takes safetensors' upper-case spelling ("F32", "BF16") and
/// torch's ("float16").
std::optional<DType> parse_dtype(std::string_view name) noexcept;
/// True for f32, f16, bf16: the types that weights may have.
bool is_weight_dtype(DType type) noexcept;

/// bf16 bits -> f32, exact.
inline float bf16_to_f32(uint16_t bits) noexcept {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// f32 -> bf16 bits, round to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// e4m3 code (arXiv:2209.05433: no infinities) -> f32, exact; NaN for 0x7f and 0xff.
float e4m3_to_f32(uint8_t code) noexcept;
/// f16 bits -> f32, exact, subnormals included.
float f16_to_f32(uint16_t bits) noexcept;
/// f32 -> f16 bits, round to nearest even; overflow becomes infinity; NaN stays NaN.
uint16_t f32_to_f16(float value) noexcept;

}  // namespace sluice
