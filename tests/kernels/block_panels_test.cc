// Rows of blocks to panels, held against the plain way: codes and scales one block at a time,
// packed or quantised. The same bits on every instruction set.
#include "kernels/block_panels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/quantise.h"
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
      if (format.encoding == Encoding::kInt4 &&
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

TEST_P(BlockPanels, KeepTheValuesOfKTypes) {
  const auto format = k_type_format(GetParam());
  if (!format) return;
  Random random(12);
  for_each_isa([&] {
    for (const int64_t blocks : {1, 2, 5}) {
      Rows rows = random_rows(GetParam(), blocks, Scales::kOdd, random);
      SCOPED_TRACE(random.trace() + ", blocks " + std::to_string(blocks));
      const auto size = static_cast<size_t>(format->panel_bytes(rows.cols));
      EXPECT_LE(static_cast<double>(size), 1.02 * static_cast<double>(rows.bytes.size()));
      std::vector<std::byte> panel(size + 1, std::byte{0x5a});
      ASSERT_TRUE(
          repack_blocks(GetParam(), *format, rows.addresses().data(), rows.cols, panel.data()));
      EXPECT_EQ(panel.back(), std::byte{0x5a});
      std::vector<float> unpacked(static_cast<size_t>(kRows * rows.cols));
      dequantise_panel(*format, panel.data(), kRows, rows.cols, unpacked.data(), rows.cols);
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t col = 0; col < rows.cols; ++col) {
          float values[256];
          if (col % 256 == 0) decode_block(GetParam(), rows.block(row, col / 256), values);
          const float kept = reference::quantised_value(*format, panel.data(), rows.cols, row, col);
          if (col % 256 == 0)
            for (int64_t i = 0; i < 256; ++i)
              ASSERT_EQ(unpacked[static_cast<size_t>(row * rows.cols + col + i)], values[i])
                  << row << " " << col + i;
          ASSERT_EQ(unpacked[static_cast<size_t>(row * rows.cols + col)], kept);
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

TEST_P(BlockPanels, AreOfOneFormat) {
  Random random(3);
  Rows rows = random_rows(GetParam(), 1, Scales::kUsual, random);
  std::vector<std::byte> panel(static_cast<size_t>(kRows * rows.cols * 2));
  for (const char* name : {"int4-g32", "int8-g32", "int4-g64", "int8", "nf4-g32", "fp8-g32", "q2_k",
                           "q3_k", "q4_k", "q5_k", "q6_k"}) {
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

TEST(BlockPanelsOfOthers, AreRefused) {
  const std::vector<std::byte> bytes(4096);
  const std::vector<const std::byte*> rows(kRows, bytes.data());
  std::vector<std::byte> panel(static_cast<size_t>(kInt8.panel_bytes(256)));
  for (const BlockType type : {BlockType::kNone, BlockType::kIQ2_XS, BlockType::kTQ1_0})
    EXPECT_FALSE(repack_blocks(type, kInt8, rows.data(), 256, panel.data()));
}

}  // namespace
}  // namespace sluice::kernels
