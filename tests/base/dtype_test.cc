#include "src/base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

// A small float format by its definition: sign, `exponent_bits`, `mantissa_bits`.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kHalf{5, 10};
constexpr Format kBrain{8, 7};

double value_of(Format format, uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           exponent - format.bias() - format.mantissa_bits);
}

// Nearest value of the format, ties to even, by arithmetic in double (exact: every step is a power
// of two).
uint16_t nearest(Format format, double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  const int largest = (1 << format.exponent_bits) - 1;
  const auto infinity = static_cast<uint16_t>(sign | (largest << format.mantissa_bits));
  if (std::isinf(magnitude)) return infinity;
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit =
      std::max(exponent - 1, 1 - format.bias()) - format.mantissa_bits;  // log2 of the last place
  const double units = std::nearbyint(std::ldexp(magnitude, -unit));
  const auto whole = static_cast<int64_t>(units);
  int64_t bits = 0;
  if (whole < (int64_t{1} << format.mantissa_bits)) {
    bits = whole;  // zero or subnormal
  } else {
    bits = (int64_t{unit + format.mantissa_bits + format.bias()} << format.mantissa_bits) + whole -
           (int64_t{1} << format.mantissa_bits);
  }
  if (bits >= (int64_t{largest} << format.mantissa_bits)) return infinity;
  return static_cast<uint16_t>(sign | bits);
}

void expect_exact(Format format, float (*convert)(uint16_t), uint16_t (*back)(float)) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double wanted = value_of(format, half);
    const float got = convert(half);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(value_of(format, back(got)))) << bits;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint64_t>(static_cast<double>(got)), std::bit_cast<uint64_t>(wanted))
        << bits;
    ASSERT_EQ(back(got), half) << bits;
  }
}

void expect_rounds_like_reference(Format format, uint16_t (*convert)(float), float value) {
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(value_of(format, convert(value))))
        << std::hex << std::bit_cast<uint32_t>(value);
    ASSERT_EQ((convert(value) & 0x8000) != 0, std::signbit(value));
    return;
  }
  ASSERT_EQ(convert(value), nearest(format, value))
      << value << " 0x" << std::hex << std::bit_cast<uint32_t>(value);
}

// Every pair of neighbours: the middle between them (a tie) and the f32 beside it on both sides.
void check_rounding(Format format, uint16_t (*convert)(float)) {
  const int infinity = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = value_of(format, static_cast<uint16_t>(bits));
    const double high = bits + 1 == infinity
                            ? 2 * low - value_of(format, static_cast<uint16_t>(bits - 1))
                            : value_of(format, static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    for (float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      ASSERT_NO_FATAL_FAILURE(expect_rounds_like_reference(format, convert, value));
      ASSERT_NO_FATAL_FAILURE(expect_rounds_like_reference(format, convert, -value));
    }
  }
  std::mt19937 random(5);
  for (int round = 0; round < 1000000; ++round)
    ASSERT_NO_FATAL_FAILURE(expect_rounds_like_reference(
        format, convert, std::bit_cast<float>(static_cast<uint32_t>(random()))));
}

float widen_half(uint16_t bits) { return f16_to_f32(bits); }
float widen_brain(uint16_t bits) { return bf16_to_f32(bits); }
uint16_t narrow_half(float value) { return f32_to_f16(value); }
uint16_t narrow_brain(float value) { return f32_to_bf16(value); }

TEST(DType, EveryF16ValueWidensExactlyAndComesBack) {
  expect_exact(kHalf, widen_half, narrow_half);
}
TEST(DType, EveryBf16ValueWidensExactlyAndComesBack) {
  expect_exact(kBrain, widen_brain, narrow_brain);
}
TEST(DType, F16RoundsToNearestEvenEverywhere) { check_rounding(kHalf, narrow_half); }
TEST(DType, Bf16RoundsToNearestEvenEverywhere) { check_rounding(kBrain, narrow_brain); }

TEST(DType, F16OverflowsToInfinityAt65520) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e38f), 0xfc00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(DType, NamesReadBackInEverySpelling) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
                     DType::kI8, DType::kU8, DType::kBool, DType::kF64}) {
    const std::string name(dtype_name(type));
    EXPECT_EQ(parse_dtype(name), type);
    std::string upper = name;
    for (char& letter : upper)
      letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    EXPECT_EQ(parse_dtype(upper), type) << upper;
  }
  EXPECT_EQ(parse_dtype("torch.float16"), DType::kF16);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBF16);
  EXPECT_EQ(parse_dtype("float64"), DType::kF64);
  for (const char* unknown : {"", "f8", "float", "F8_E5M2", "torch.", "f32 ", "bf"})
    EXPECT_FALSE(parse_dtype(unknown)) << unknown;
}

TEST(DType, SizesAndWeightTypes) {
  EXPECT_EQ(dtype_bytes(DType::kF32), 4);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8);
  EXPECT_EQ(dtype_bytes(DType::kI8), 1);
  EXPECT_TRUE(is_weight_dtype(DType::kF32) && is_weight_dtype(DType::kF16) &&
              is_weight_dtype(DType::kBF16));
  EXPECT_FALSE(is_weight_dtype(DType::kF64) || is_weight_dtype(DType::kI8) ||
               is_weight_dtype(DType::kBool));
}

}  // namespace
}  // namespace sluice
