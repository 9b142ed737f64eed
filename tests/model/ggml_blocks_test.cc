// Blocks of GGUF's types against the gguf package (scripts/golden/gguf_files.py).
#include "src/model/foreign/ggml_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/dtype.h"
#include "src/base/microscaling.h"

namespace sluice {
namespace {

struct Golden {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

std::vector<Golden> goldens(BlockType type) {
  std::ifstream file(std::string(SLUICE_FIXTURES) + "/gguf/blocks.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<Golden> out;
  for (const auto& block : json.at(std::string(block_layout(type).name))) {
    Golden& golden = out.emplace_back();
    const auto hex = block.at("bytes").get<std::string>();
    for (size_t i = 0; i < hex.size(); i += 2)
      golden.bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    golden.values = block.at("values").get<std::vector<float>>();
  }
  return out;
}

class GgmlBlocks : public testing::TestWithParam<BlockType> {};

TEST_P(GgmlBlocks, AreWhatThePackageSays) {
  const BlockLayout& layout = block_layout(GetParam());
  EXPECT_EQ(block_type(layout.gguf_type), GetParam());
  const auto blocks = goldens(GetParam());
  ASSERT_FALSE(blocks.empty());
  for (const Golden& golden : blocks) {
    ASSERT_EQ(static_cast<int64_t>(golden.bytes.size()), layout.bytes);
    ASSERT_EQ(static_cast<int64_t>(golden.values.size()), layout.elements);
    std::vector<float> values(golden.values.size());
    decode_block(GetParam(), golden.bytes.data(), values.data());
    // No rounding but that of an offset's sum: the package's is the same.
    EXPECT_EQ(values, golden.values);
  }
}

constexpr float kIq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

TEST_P(GgmlBlocks, KeepTheirCodes) {
  const auto format = format_of_blocks(GetParam());
  if (!format) {
    uint8_t codes[32];
    float scale, zero;
    EXPECT_FALSE(
        block_codes(GetParam(), goldens(GetParam())[0].bytes.data(), 0, codes, scale, zero));
    return;
  }
  const int most = format->encoding == Encoding::kInt8 ? 255 : 15;
  for (const Golden& golden : goldens(GetParam()))
    for (int64_t part = 0; part < block_layout(GetParam()).elements / 32; ++part) {
      uint8_t codes[32];
      float scale = 0, zero = 0;
      ASSERT_TRUE(block_codes(GetParam(), golden.bytes.data(), part, codes, scale, zero));
      for (int i = 0; i < 32; ++i) {
        ASSERT_LE(codes[i], most);
        const float expected = golden.values[static_cast<size_t>(part * 32 + i)];
        const float value = format->encoding == Encoding::kMxfp4 ? kE2m1Values[codes[i]]
                            : format->encoding == Encoding::kIq4
                                ? kIq4[codes[i]]
                                : static_cast<float>(codes[i]) - zero;
        ASSERT_NEAR(scale * value, expected, 1e-6 + 1e-5 * std::fabs(expected));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlBlocks,
                         testing::Values(BlockType::kQ4_0, BlockType::kQ4_1, BlockType::kQ5_0,
                                         BlockType::kQ5_1, BlockType::kQ8_0, BlockType::kQ2_K,
                                         BlockType::kQ3_K, BlockType::kQ4_K, BlockType::kQ5_K,
                                         BlockType::kQ6_K),
                         [](const auto& info) {
                           return std::string(block_layout(info.param).name);
                         });

constexpr BlockType kGridTypes[] = {BlockType::kIQ1_S,  BlockType::kIQ1_M,  BlockType::kIQ2_XXS,
                                    BlockType::kIQ2_XS, BlockType::kIQ2_S,  BlockType::kIQ3_XXS,
                                    BlockType::kIQ3_S,  BlockType::kIQ4_NL, BlockType::kIQ4_XS,
                                    BlockType::kTQ1_0,  BlockType::kTQ2_0,  BlockType::kMXFP4,
                                    BlockType::kNVFP4,  BlockType::kQ1_0};
const auto kTypeName = [](const auto& info) { return std::string(block_layout(info.param).name); };
INSTANTIATE_TEST_SUITE_P(GridTypes, GgmlBlocks, testing::ValuesIn(kGridTypes), kTypeName);

TEST(GgmlBlocksEdges, PowersOfMxfp4AreThoseOfTheFormat) {
  std::vector<std::byte> block(17, std::byte{0x22});  // twice 2 of halves: 1
  float values[32];
  for (int e = 0; e < 255; ++e) {
    block[0] = static_cast<std::byte>(e);
    decode_block(BlockType::kMXFP4, block.data(), values);
    for (const float value : values) ASSERT_EQ(value, std::ldexp(1.0F, e - 127)) << e;
  }
}

// Newer than the gguf package: codes of two bits, the lowest first, less one.
TEST(GgmlBlocksEdges, CodesOfQ2_0AreFromMinusOneToTwo) {
  std::vector<std::byte> block(18, std::byte{0xe4});
  block[0] = std::byte{0};
  block[1] = std::byte{0xb8};  // -0.5
  block[17] = std::byte{0x03};
  ASSERT_EQ(block_layout(BlockType::kQ2_0).bytes, 18);
  float values[64];
  decode_block(BlockType::kQ2_0, block.data(), values);
  for (int i = 0; i < 60; ++i) ASSERT_EQ(values[i], -0.5F * static_cast<float>(i % 4 - 1)) << i;
  EXPECT_EQ(values[60], -1);
  EXPECT_EQ(values[63], 0.5F);
  uint8_t codes[32];
  float scale = 0, zero = 0;
  ASSERT_TRUE(block_codes(BlockType::kQ2_0, block.data(), 1, codes, scale, zero));
  for (int i = 0; i < 32; ++i)
    ASSERT_EQ(scale * (static_cast<float>(codes[i]) - zero), values[32 + i]) << i;
}

// As e4m3 without sign has them; what is no number is 0.
TEST(GgmlBlocksEdges, ScalesOfNvfp4AreThoseOfTheFormat) {
  std::vector<std::byte> block(36, std::byte{0x22});  // all 1
  float values[64];
  for (int e = 0; e < 128; ++e) {
    std::fill_n(block.begin(), 4, static_cast<std::byte>(e));
    decode_block(BlockType::kNVFP4, block.data(), values);
    const double expected = e == 127 ? 0
                            : e < 8  ? std::ldexp(e, -9)
                                     : std::ldexp(8 + e % 8, e / 8 - 10);
    for (const float value : values) ASSERT_EQ(value, expected) << e;
  }
}

TEST(GgmlBlocksEdges, CodesOfMxfp4AreTheFormats) {
  uint8_t codes[32];
  float scale = 0, zero = 0;
  std::vector<std::byte> block(17, std::byte{0x80});  // 0 and what would be -0
  for (int e = 0; e < 256; ++e) {
    block[0] = static_cast<std::byte>(e);
    ASSERT_EQ(block_codes(BlockType::kMXFP4, block.data(), 0, codes, scale, zero), e < 255) << e;
    if (e < 255) ASSERT_EQ(scale, std::ldexp(1.0F, e - 127));
    for (const uint8_t code : codes) ASSERT_EQ(code, 0);
  }
}

TEST(GgmlBlocksEdges, BlocksOfOneValueKeepIt) {
  uint8_t codes[32];
  float scale = 0, zero = 0;
  std::vector<std::byte> block(20, std::byte{0x55});
  for (const auto& [high_byte, value] : {std::pair{0x3c, 1.0f}, {0xbc, -1.0f}, {0x00, 0.0f}}) {
    block[0] = block[1] = block[2] = std::byte{0};  // d = 0
    block[3] = static_cast<std::byte>(high_byte);   // m
    ASSERT_TRUE(block_codes(BlockType::kQ4_1, block.data(), 0, codes, scale, zero));
    for (const uint8_t code : codes) EXPECT_EQ(scale * (static_cast<float>(code) - zero), value);
  }
}

}  // namespace
}  // namespace sluice
