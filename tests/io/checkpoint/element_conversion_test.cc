#include "io/checkpoint/element_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace sluice::io {
namespace {

// The scalar functions of src/base/dtype.h are the specification; only a NaN's payload is free.
uint32_t expected_f32(DType from, uint16_t bits) {
  const float value = from == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  return std::bit_cast<uint32_t>(value);
}

uint16_t expected_16(DType to, float value) {
  return to == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}

bool is_quiet_f32(uint32_t bits) { return (bits & 0x7fc00000u) == 0x7fc00000u; }

using Converter = void (*)(DType, std::span<const std::byte>, DType, std::span<std::byte>);
constexpr Converter kConverters[] = {convert_elements, convert_elements_portable};

std::vector<uint16_t> all_16_bit_values() {
  std::vector<uint16_t> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

std::vector<float> many_floats() {
  std::vector<float> values = {0.0f,     -0.0f,      1.0f,     -1.0f,     65504.0f, 65519.9f,
                               65520.0f, 1e30f,      INFINITY, -INFINITY, 0x1p-14f, 0x1p-24f,
                               0x1p-25f, 0x1.8p-25f, 0x1p-26f, 0x1p-149f};
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Around every half-way case of both targets.
  for (uint32_t i = 0; i < 65536; ++i)
    for (const int step : {-1, 0, 1}) {
      values.push_back(std::bit_cast<float>((i << 16 | 0x8000u) + static_cast<uint32_t>(step)));
      const float half = f16_to_f32(static_cast<uint16_t>(i));
      values.push_back(std::bit_cast<float>((std::bit_cast<uint32_t>(half) | 0x1000u) +
                                            static_cast<uint32_t>(step)));
    }
  return values;
}

TEST(ElementConversion, WidensEveryHalfExactly) {
  const std::vector<uint16_t> in = all_16_bit_values();
  for (const Converter convert : kConverters)
    for (const DType from : {DType::kF16, DType::kBF16}) {
      std::vector<uint32_t> out(in.size());
      convert(from, std::as_bytes(std::span(in)), DType::kF32,
              std::as_writable_bytes(std::span(out)));
      for (size_t i = 0; i < in.size(); ++i) {
        const uint32_t expected = expected_f32(from, in[i]);
        if (std::isnan(std::bit_cast<float>(expected))) {
          ASSERT_TRUE(std::isnan(std::bit_cast<float>(out[i]))) << i;
        } else {
          ASSERT_EQ(out[i], expected) << dtype_name(from) << " " << i;
        }
      }
    }
}

TEST(ElementConversion, NarrowsToNearestEven) {
  const std::vector<float> in = many_floats();
  for (const Converter convert : kConverters)
    for (const DType to : {DType::kF16, DType::kBF16}) {
      std::vector<uint16_t> out(in.size());
      convert(DType::kF32, std::as_bytes(std::span(in)), to,
              std::as_writable_bytes(std::span(out)));
      for (size_t i = 0; i < in.size(); ++i)
        ASSERT_EQ(out[i], expected_16(to, in[i]))
            << dtype_name(to) << " " << std::bit_cast<uint32_t>(in[i]);
    }
}

TEST(ElementConversion, BothPathsAgreeBitForBitBetweenHalves) {
  const std::vector<uint16_t> in = all_16_bit_values();
  for (const auto& [from, to] :
       {std::pair(DType::kF16, DType::kBF16), std::pair(DType::kBF16, DType::kF16)}) {
    std::vector<uint16_t> fast(in.size());
    std::vector<uint16_t> plain(in.size());
    convert_elements(from, std::as_bytes(std::span(in)), to,
                     std::as_writable_bytes(std::span(fast)));
    convert_elements_portable(from, std::as_bytes(std::span(in)), to,
                              std::as_writable_bytes(std::span(plain)));
    EXPECT_EQ(fast, plain);
    for (size_t i = 0; i < in.size(); ++i) {
      const float value = std::bit_cast<float>(expected_f32(from, in[i]));
      if (!std::isnan(value)) {
        ASSERT_EQ(fast[i], expected_16(to, value)) << i;
      }
    }
  }
}

TEST(ElementConversion, NanStaysNanAndComesOutQuiet) {
  const std::vector<uint16_t> signalling(16, 0x7c01);
  for (const Converter convert : kConverters) {
    std::vector<uint32_t> out(signalling.size());
    convert(DType::kF16, std::as_bytes(std::span(signalling)), DType::kF32,
            std::as_writable_bytes(std::span(out)));
    for (const uint32_t bits : out) EXPECT_TRUE(is_quiet_f32(bits)) << bits;
  }
}

TEST(ElementConversion, TakesAnyLengthAndAddress) {
  std::mt19937 random(5);
  std::vector<std::byte> in(4 * 201 + 1);
  for (std::byte& byte : in) byte = static_cast<std::byte>(random() & 0x3f);
  for (size_t count = 0; count <= 200; ++count) {
    std::vector<std::byte> out(2 * count + 2, std::byte{0xaa});
    convert_elements(DType::kF32, std::span(in).subspan(1, 4 * count), DType::kBF16,
                     std::span(out).subspan(1, 2 * count));
    EXPECT_EQ(out.front(), std::byte{0xaa});
    EXPECT_EQ(out.back(), std::byte{0xaa});
    for (size_t i = 0; i < count; ++i) {
      float value = 0;
      uint16_t got = 0;
      std::memcpy(&value, in.data() + 1 + 4 * i, 4);
      std::memcpy(&got, out.data() + 1 + 2 * i, 2);
      ASSERT_EQ(got, f32_to_bf16(value)) << count << " " << i;
    }
  }
}

TEST(ElementConversion, NarrowsDoublesAndCopiesEqualTypes) {
  const std::vector<double> in = {0.1, -2.5, 1e300, 0x1p-30};
  std::vector<float> out(in.size());
  convert_elements(DType::kF64, std::as_bytes(std::span(in)), DType::kF32,
                   std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, (std::vector<float>{0.1f, -2.5f, INFINITY, 0x1p-30f}));
  const std::vector<int64_t> ids = {1, -7};
  std::vector<int64_t> copy(2);
  convert_elements(DType::kI64, std::as_bytes(std::span(ids)), DType::kI64,
                   std::as_writable_bytes(std::span(copy)));
  EXPECT_EQ(copy, ids);
}

TEST(ElementConversion, FindsWhatBecameInfinite) {
  const auto overflow = [](const auto& in, DType from, DType to) {
    std::vector<std::byte> out(in.size() * static_cast<size_t>(dtype_bytes(to)));
    const auto bytes = std::as_bytes(std::span(in));
    convert_elements(from, bytes, to, out);
    return first_overflow(from, bytes, to, out);
  };
  const std::vector<float> fine = {65504, -65519, 0, INFINITY, -INFINITY, NAN, 1e-30f};
  EXPECT_EQ(overflow(fine, DType::kF32, DType::kF16), -1);
  for (size_t at = 0; at < 40; ++at) {
    std::vector<float> one(40, -INFINITY);
    one[at] = at % 2 == 0 ? 65520.0f : -1e30f;
    EXPECT_EQ(overflow(one, DType::kF32, DType::kF16), static_cast<int64_t>(at));
    EXPECT_EQ(overflow(one, DType::kF32, DType::kBF16), -1);
  }
  EXPECT_EQ(overflow(std::vector<float>{1, 3.4e38f}, DType::kF32, DType::kBF16), 1);
  EXPECT_EQ(overflow(std::vector<double>{1e38, 1e39}, DType::kF64, DType::kF32), 1);
  EXPECT_EQ(overflow(std::vector<uint16_t>{f32_to_bf16(65504), f32_to_bf16(70000)}, DType::kBF16,
                     DType::kF16),
            0);  // 65504 is 65536 in bf16
  EXPECT_EQ(overflow(std::vector<uint16_t>{0x7c00, 0x7bff}, DType::kF16, DType::kBF16), -1);
  EXPECT_EQ(overflow(std::vector<float>{INFINITY}, DType::kF32, DType::kF32), -1);
  EXPECT_EQ(overflow(std::vector<int8_t>{127, -128}, DType::kI8, DType::kI8), -1);
}

TEST(ElementConversion, KnowsWhatItCannotDo) {
  EXPECT_TRUE(can_convert(DType::kU8, DType::kU8));
  EXPECT_TRUE(can_convert(DType::kF64, DType::kBF16));
  EXPECT_FALSE(can_convert(DType::kI64, DType::kF32));
  EXPECT_FALSE(can_convert(DType::kF32, DType::kF64));
  EXPECT_FALSE(can_convert(DType::kF32, DType::kI8));
}

}  // namespace
}  // namespace sluice::io
