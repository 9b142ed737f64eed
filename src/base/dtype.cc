#include "src/base/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <string>

namespace sluice {

namespace {
struct Row {
  DType type;
  int64_t bytes;
  std::string_view name;
  std::string_view torch_name;
};
constexpr std::array<Row, 11> kRows{{{DType::kF32, 4, "f32", "float32"},
                                     {DType::kF16, 2, "f16", "float16"},
                                     {DType::kBF16, 2, "bf16", "bfloat16"},
                                     {DType::kI64, 8, "i64", "int64"},
                                     {DType::kI32, 4, "i32", "int32"},
                                     {DType::kI16, 2, "i16", "int16"},
                                     {DType::kI8, 1, "i8", "int8"},
                                     {DType::kU8, 1, "u8", "uint8"},
                                     {DType::kBool, 1, "bool", "bool"},
                                     {DType::kF64, 8, "f64", "float64"},
                                     {DType::kF8E4M3, 1, "f8_e4m3", "float8_e4m3fn"}}};
}  // namespace

int64_t dtype_bytes(DType type) noexcept { return kRows[static_cast<size_t>(type)].bytes; }

std::string_view dtype_name(DType type) noexcept { return kRows[static_cast<size_t>(type)].name; }

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (lower.starts_with("torch.")) lower.erase(0, 6);
  for (const Row& row : kRows)
    if (lower == row.name || lower == row.torch_name) return row.type;
  return std::nullopt;
}

bool is_weight_dtype(DType type) noexcept {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

float e4m3_to_f32(uint8_t code) noexcept {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) ? -magnitude : magnitude;
}

float f16_to_f32(uint16_t bits) noexcept {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (magnitude <
      0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds at bit 2^-24 to nearest even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace sluice
