// Rows of blocks to panels, held against the plain way: codes and scales one block at a time,
// packed or quantised. The same bits on every instruction set.
#include "kernels/block_panels.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/quantise.h"
#include "kernels/quantised_layout.h"
#include "src/model/foreign/ggml_blocks.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kRows = WeightFormat::kPanelRows;
constexpr WeightFormat kInt8{Encoding::kInt8, DType::kBF16, 32};

struct Rows {
  BlockType type;
  int64_t cols;
  int64_t row_bytes;
  std::vector<std::byte> bytes;

  Rows(BlockType of, int64_t blocks)
      : type(of),
        cols(blocks * block_layout(of).elements),
        row_bytes(blocks * block_layout(of).bytes),
        bytes(static_cast<size_t>(kRows * row_bytes)) {}
  std::byte* block(int64_t row, int64_t index) {
    return bytes.data() + row * row_bytes + index * block_layout(type).bytes;
  }
  std::vector<const std::byte*> addresses() {
    std::vector<const std::byte*> out;
    for (int64_t row = 0; row < kRows; ++row) out.push_back(block(row, 0));
    return out;
  }
};

// What keeps the values of such blocks exactly, if anything does.
std::optional<WeightFormat> exact_format(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
    case BlockType::kMXFP4:
    case BlockType::kIQ4_NL:
    case BlockType::kIQ4_XS: return format_of_blocks(type);
    default: return k_type_format(type);
  }
}

WeightFormat format_for(BlockType type) { return format_of_blocks(type).value_or(kInt8); }

// Bytes of a block where f16 scales lie.
std::vector<int64_t> scales_of(BlockType type) {
  switch (type) {
    case BlockType::kQ4_1:
    case BlockType::kQ5_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: return {0, 2};
    case BlockType::kQ2_K: return {80, 82};
    case BlockType::kQ3_K: return {108};
    case BlockType::kQ6_K: return {208};
    case BlockType::kMXFP4: return {};
    default: return {0};
  }
}

void put_scale(Rows& rows, int64_t row, int64_t index, int64_t at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(rows.block(row, index) + at, &bits, 2);
}

// Odd ones have scales of next to nothing, at times, so that an offset may be too many of them.
enum class Scales { kUsual, kOdd };

Rows random_rows(BlockType type, int64_t blocks, Scales scales, Random& random) {
  Rows rows(type, blocks);
  for (std::byte& byte : rows.bytes) byte = static_cast<std::byte>(random.between(0, 255));
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t index = 0; index < blocks; ++index) {
      for (const int64_t at : scales_of(type)) {
        const int64_t kind = random.between(0, 15);
        const float value = kind == 0 ? 0
                            : kind == 1 && scales == Scales::kOdd
                                ? 0x1p-24f * static_cast<float>(random.between(-9, 9))
                                : 0.001f * static_cast<float>(random.between(-999, 999));
        put_scale(rows, row, index, at, value);
      }
      if (type == BlockType::kMXFP4)  // small powers at times, of all at their ends
        *rows.block(row, index) = static_cast<std::byte>(
            random.between(0, 3) > 0 ? random.between(100, 130) : random.between(0, 3));
    }
  return rows;
}

// False: neither codes nor values fit.
bool plain_way(Rows& rows, std::vector<std::byte>& panel) {
  const WeightFormat format = format_for(rows.type);
  const BlockLayout& layout = block_layout(rows.type);
  if (!format_of_blocks(rows.type)) {
    std::vector<float> values(static_cast<size_t>(kRows * rows.cols));
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t col = 0; col < rows.cols; col += layout.elements)
        decode_block(rows.type, rows.block(row, col / layout.elements),
                     values.data() + row * rows.cols + col);
    return quantise_panel(format, {}, values.data(), rows.cols, kRows, rows.cols, panel.data());
  }
  for (int64_t group = 0; group < rows.cols / 32; ++group) {
    uint8_t codes[kRows * 32];
    float scales[kRows], zeros[kRows];
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t index = group * 32 / layout.elements,
                    part = group - index * layout.elements / 32;
      block_codes(rows.type, rows.block(row, index), part, codes + row * 32, scales[row],
                  zeros[row]);
      if (has_int4_codes(format.encoding) &&
          !(std::isfinite(f16_to_f32(f32_to_f16(scales[row]))) && std::fabs(zeros[row]) < 65504))
        return false;
    }
    pack_group(format, rows.cols, group, codes, scales, zeros, panel.data());
  }
  return true;
}

class BlockPanels : public ::testing::TestWithParam<BlockType> {};

TEST_P(BlockPanels, AreThoseOfThePlainWay) {
  Random random(11);
  const WeightFormat format = format_for(GetParam());
  for_each_isa([&] {
    for (const int64_t blocks : {1, 2, 3, 8, 17, -1, -5}) {
      const Scales scales = blocks > 0 ? Scales::kUsual : Scales::kOdd;
      Rows rows = random_rows(GetParam(), std::abs(blocks), scales, random);
      SCOPED_TRACE(random.trace() + ", blocks " + std::to_string(blocks));
      const auto size = static_cast<size_t>(format.panel_bytes(rows.cols));
      std::vector<std::byte> expected(size), actual(size + 1, std::byte{0x5a});
      const bool fits = plain_way(rows, expected);
      ASSERT_TRUE(fits || scales == Scales::kOdd);
      ASSERT_EQ(
          repack_blocks(GetParam(), format, rows.addresses().data(), rows.cols, actual.data()),
          fits);
      EXPECT_EQ(actual.back(), std::byte{0x5a});
      actual.pop_back();
      if (!fits) continue;
      const auto differs = std::mismatch(actual.begin(), actual.end(), expected.begin());
      ASSERT_TRUE(differs.first == actual.end()) << "byte " << differs.first - actual.begin();
    }
  });
}

bool are_same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST_P(BlockPanels, KeepTheValues) {
  const auto format = exact_format(GetParam());
  if (!format) return;
  Random random(12);
  for_each_isa([&] {
    for (const int64_t blocks : {1, 2, 5}) {
      Rows rows = random_rows(GetParam(), blocks, Scales::kOdd, random);
      SCOPED_TRACE(random.trace() + ", blocks " + std::to_string(blocks));
      const auto size = static_cast<size_t>(format->panel_bytes(rows.cols));
      const double most = format->encoding == Encoding::kIq4 ? 1.18 : 1.02;
      EXPECT_LE(static_cast<double>(size), most * static_cast<double>(rows.bytes.size()));
      const int64_t elements = block_layout(GetParam()).elements;
      std::vector<std::byte> panel(size + 1, std::byte{0x5a});
      ASSERT_TRUE(
          repack_blocks(GetParam(), *format, rows.addresses().data(), rows.cols, panel.data()));
      EXPECT_EQ(panel.back(), std::byte{0x5a});
      std::vector<float> unpacked(static_cast<size_t>(kRows * rows.cols));
      dequantise_panel(*format, panel.data(), kRows, rows.cols, unpacked.data(), rows.cols);
      float values[256];
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t col = 0; col < rows.cols; ++col) {
          if (col % elements == 0)
            decode_block(GetParam(), rows.block(row, col / elements), values);
          const float kept = reference::quantised_value(*format, panel.data(), rows.cols, row, col);
          const float as_unpacked = unpacked[static_cast<size_t>(row * rows.cols + col)];
          const float expected = values[col % elements];
          ASSERT_TRUE(are_same_bits(as_unpacked, expected))
              << row << " " << col << ": " << as_unpacked << ", " << expected;
          ASSERT_TRUE(are_same_bits(kept, expected)) << row << " " << col;
        }
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        for (const int64_t at : scales_of(GetParam())) {
          Rows broken = rows;
          put_scale(broken, random.between(0, kRows - 1), random.between(0, blocks - 1), at, bad);
          EXPECT_FALSE(repack_blocks(GetParam(), *format, broken.addresses().data(), rows.cols,
                                     panel.data()));
        }
    }
  });
}

TEST_P(BlockPanels, AreRefusedWhereAScaleIsNoNumber) {
  const WeightFormat format = format_for(GetParam());
  if (format == kInt8 && format_of_blocks(GetParam())) return;  // kept in f32 as it is
  Random random(5);
  for_each_isa([&] {
    for (const int64_t at : scales_of(GetParam()))
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Rows rows = random_rows(GetParam(), 3, Scales::kUsual, random);
        for (auto& byte : rows.bytes) byte &= std::byte{0x11};  // nothing else is large
        put_scale(rows, random.between(0, kRows - 1), 2, at, bad);
        std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(rows.cols)));
        EXPECT_FALSE(
            repack_blocks(GetParam(), format, rows.addresses().data(), rows.cols, panel.data()))
            << "scale at " << at << ", " << bad;
      }
  });
}

TEST(BlockPanelsOfMxfp4, AreRefusedWhereAPowerIsNoNumber) {
  Random random(6);
  for_each_isa([&] {
    Rows rows = random_rows(BlockType::kMXFP4, 3, Scales::kUsual, random);
    const WeightFormat format = format_for(rows.type);
    std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(rows.cols)));
    const auto repacks = [&] {
      return repack_blocks(rows.type, format, rows.addresses().data(), rows.cols, panel.data());
    };
    EXPECT_TRUE(repacks());
    *rows.block(random.between(0, kRows - 1), random.between(0, 2)) = std::byte{255};
    EXPECT_FALSE(repacks());
  });
}

TEST_P(BlockPanels, AreOfOneFormat) {
  Random random(3);
  Rows rows = random_rows(GetParam(), 1, Scales::kUsual, random);
  std::vector<std::byte> panel(static_cast<size_t>(kRows * rows.cols * 2));
  for (const char* name :
       {"int4-g32", "int8-g32", "int4-g64", "int8", "nf4-g32", "fp8-g32", "q2_k", "q3_k", "q4_k",
        "q5_k", "q6_k", "mxfp4", "q4_0", "iq4", "q4_1", "q5_1", "iq1", "iq2"}) {
    const WeightFormat format = parse_weight_format(name).value();
    EXPECT_EQ(repack_blocks(GetParam(), format, rows.addresses().data(), rows.cols, panel.data()),
              format == format_for(GetParam()) || format == k_type_format(GetParam()))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlockPanels,
                         ::testing::Values(BlockType::kQ4_0, BlockType::kQ4_1, BlockType::kQ5_0,
                                           BlockType::kQ5_1, BlockType::kQ8_0, BlockType::kQ2_K,
                                           BlockType::kQ3_K, BlockType::kQ4_K, BlockType::kQ5_K,
                                           BlockType::kQ6_K, BlockType::kIQ4_NL, BlockType::kIQ4_XS,
                                           BlockType::kMXFP4),
                         [](const auto& info) {
                           return std::string(block_layout(info.param).name);
                         });

// Codebooks' blocks go by way of their parts.
TEST(BlockPanelsOfCodebooks, KeepTheValues) {
  Random random(13);
  for_each_isa([&] {
    for (const BlockType type : {BlockType::kIQ1_S, BlockType::kIQ1_M, BlockType::kIQ2_XXS,
                                 BlockType::kIQ2_XS, BlockType::kIQ2_S}) {
      const WeightFormat format = k_type_format(type).value();
      SCOPED_TRACE(random.trace() + ", " + std::string(block_layout(type).name));
      std::vector<uint8_t> codes(kRows * 256);
      std::vector<int8_t> scales(kRows * 16);
      std::vector<float> d(kRows), values(kRows * 256), unpacked(kRows * 256);
      std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(256)) + 1);
      for (int64_t row = 0; row < kRows;) {
        std::vector<std::byte> block(static_cast<size_t>(block_layout(type).bytes));
        for (std::byte& byte : block) byte = static_cast<std::byte>(random.between(0, 255));
        if (random.between(0, 3) == 0) block[0] = block[1] = std::byte{0};
        if (random.between(0, 3) == 0) block[1] = std::byte{0x80};  // less than any normal number
        decode_block(type, block.data(), values.data() + row * 256);
        const bool is_finite = block_parts(type, block.data(), codes.data() + row * 256,
                                           scales.data() + row * 16, d[static_cast<size_t>(row)]);
        ASSERT_EQ(is_finite, std::isfinite(values[static_cast<size_t>(row * 256)]));
        if (is_finite) ++row;
      }
      panel.back() = std::byte{0x5a};
      pack_parts(format, codes.data(), scales.data(), d.data(), panel.data());
      EXPECT_EQ(panel.back(), std::byte{0x5a});
      dequantise_panel(format, panel.data(), kRows, 256, unpacked.data(), 256);
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t col = 0; col < 256; ++col) {
          const auto at = static_cast<size_t>(row * 256 + col);
          ASSERT_TRUE(are_same_bits(unpacked[at], values[at]))
              << row << " " << col << ": " << unpacked[at] << ", " << values[at];
          ASSERT_TRUE(are_same_bits(reference::quantised_value(format, panel.data(), 256, row, col),
                                    values[at]));
        }
    }
  });
}

TEST(BlockPanelsOfCodebooks, AreOfTheirOwnFormat) {
  std::vector<uint8_t> codes(256);
  std::vector<int8_t> scales(16);
  float d = 0;
  const std::vector<std::byte> block(256);
  for (const BlockType type : {BlockType::kNone, BlockType::kQ4_1, BlockType::kIQ3_S,
                               BlockType::kIQ4_XS, BlockType::kTQ1_0})
    EXPECT_FALSE(block_parts(type, block.data(), codes.data(), scales.data(), d));
}

// q6_k's groups from parts are those from blocks.
TEST(BlockPanelsOfCodebooks, PartsOfOthersLieAsTheirBlocksDo) {
  Random random(14);
  Rows rows = random_rows(BlockType::kQ6_K, 1, Scales::kUsual, random);
  const WeightFormat format = parse_weight_format("q6_k").value();
  std::vector<std::byte> expected(static_cast<size_t>(format.panel_bytes(256))), actual(expected);
  ASSERT_TRUE(repack_blocks(rows.type, format, rows.addresses().data(), 256, expected.data()));
  std::vector<uint8_t> codes(kRows * 256);
  std::vector<int8_t> scales(kRows * 16);
  std::vector<float> d(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    uint16_t half;
    std::memcpy(&half, rows.block(row, 0) + 208, 2);
    d[static_cast<size_t>(row)] = f16_to_f32(half);
    std::memcpy(scales.data() + row * 16, rows.block(row, 0) + 192, 16);
    for (int64_t i = 0; i < 256; ++i) {
      const auto at = static_cast<uint8_t>(rows.block(row, 0)[i / 128 * 64 + i % 64]);
      const auto pair = static_cast<uint8_t>(rows.block(row, 0)[128 + i / 128 * 32 + i % 32]);
      codes[static_cast<size_t>(row * 256 + i)] = static_cast<uint8_t>(
          (i % 128 < 64 ? at & 15 : at >> 4) | (pair >> (i % 128 / 32 * 2) & 3) << 4);
    }
  }
  pack_parts(format, codes.data(), scales.data(), d.data(), actual.data());
  EXPECT_EQ(actual, expected);
}

TEST(BlockPanelsOfOthers, AreRefused) {
  const std::vector<std::byte> bytes(4096);
  const std::vector<const std::byte*> rows(kRows, bytes.data());
  std::vector<std::byte> panel(static_cast<size_t>(kInt8.panel_bytes(256)));
  for (const BlockType type : {BlockType::kNone, BlockType::kIQ2_XS, BlockType::kTQ1_0})
    EXPECT_FALSE(repack_blocks(type, kInt8, rows.data(), 256, panel.data()));
}

}  // namespace
}  // namespace sluice::kernels
