// Words of codes to groups of panels, held against the plain way: code by code, packed. The same
// bits on every instruction set.
#include "kernels/word_panels.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/quantise.h"
#include "src/base/microscaling.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kWordRows = WeightFormat::kPanelRows;

// Codes of one group of 16 rows, and words that hold them.
struct Words {
  WordOrder order;
  int64_t columns;
  bool are_turned;  // rows of a word's columns are neighbours
  std::vector<uint8_t> codes;
  std::vector<std::byte> bytes;
  CodeWords words;

  Words(WordOrder of, int64_t cols, bool turned, Random& random)
      : order(of), columns(cols), are_turned(turned) {
    const bool is_byte = of == WordOrder::kBytes || of == WordOrder::kSignedBytes;
    const int64_t of_word = is_byte ? 4 : 8;
    for (int64_t i = 0; i < kWordRows * columns; ++i)
      codes.push_back(static_cast<uint8_t>(random.between(0, is_byte ? 126 : 15)));
    const int64_t gap = 4 * random.between(0, 3);  // other rows, or columns
    const int64_t count = of == WordOrder::kRowNibbles ? columns : columns / of_word;
    const int64_t lines = of == WordOrder::kRowNibbles ? 2 : kWordRows;
    words.order = of;
    words.row_bytes = are_turned ? 4 : 4 * count + gap;
    words.word_bytes = are_turned ? 4 * lines + gap : 4;
    bytes.assign(static_cast<size_t>((lines + 1) * (count + 1) * 4 + gap * 200), std::byte{0xee});
    words.first = bytes.data();
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t at = 0; at < count; ++at) put(line, at);
  }

  void put(int64_t line, int64_t at) {
    uint32_t word = 0;
    constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int i = 0; i < 8; ++i) {
      switch (order) {
        case WordOrder::kNibbles: word |= code(line, 8 * at + i) << (4 * i); break;
        case WordOrder::kHighNibblesFirst: word |= code(line, 8 * at + i) << (4 * (i ^ 1)); break;
        case WordOrder::kRowNibbles: word |= code(8 * line + kOrder[i], at) << (4 * i); break;
        case WordOrder::kBytes:
          if (i < 4) word |= code(line, 4 * at + i) << (8 * i);
          break;
        case WordOrder::kSignedBytes:
          if (i < 4) word |= ((code(line, 4 * at + i) - 128) & 255) << (8 * i);
          break;
      }
    }
    std::memcpy(bytes.data() + line * words.row_bytes + at * words.word_bytes, &word, 4);
  }
  uint32_t code(int64_t row, int64_t col) const {
    return codes[static_cast<size_t>(row * columns + col)];
  }
};

struct WordCase {
  WordOrder order;
  const char* format;
};
constexpr WordCase kWordCases[] = {{WordOrder::kNibbles, "int4-g128"},
                                   {WordOrder::kNibbles, "int4-g32"},
                                   {WordOrder::kNibbles, "mxfp4"},
                                   {WordOrder::kHighNibblesFirst, "q4_0"},
                                   {WordOrder::kRowNibbles, "int4-g64"},
                                   {WordOrder::kRowNibbles, "int4-g128"},
                                   {WordOrder::kHighNibblesFirst, "nf4-g64"},
                                   {WordOrder::kBytes, "int8-g32"},
                                   {WordOrder::kBytes, "fp8-g128"},
                                   {WordOrder::kBytes, "fp8"},
                                   {WordOrder::kSignedBytes, "int8"},
                                   {WordOrder::kSignedBytes, "int8-g128"}};

std::vector<float> scales_for(const WeightFormat& format, Random& random) {
  std::vector<float> out;
  for (int64_t row = 0; row < kWordRows; ++row)
    out.push_back(format.encoding == Encoding::kMxfp4
                      ? e8m0_value(static_cast<uint8_t>(random.between(0, 252)))
                      : 0.001f * static_cast<float>(random.between(-999, 999)));
  return out;
}

// The group of format `format` whose columns are the first ones of it, padded with zeros.
std::vector<std::byte> plain_group(const Words& of, const WeightFormat& format, int64_t cols,
                                   const std::vector<float>& scales,
                                   const std::vector<float>& zeros) {
  const int64_t padded = format.group_columns(cols);
  std::vector<uint8_t> codes(static_cast<size_t>(kWordRows * padded));
  for (int64_t row = 0; row < kWordRows; ++row)
    for (int64_t col = 0; col < of.columns; ++col)
      codes[static_cast<size_t>(row * padded + col)] = static_cast<uint8_t>(of.code(row, col));
  std::vector<std::byte> group(
      static_cast<size_t>(format.group_code_bytes(cols) + format.scale_bytes()));
  pack_group(format, cols, 0, codes.data(), scales.data(), zeros.data(), group.data());
  return group;
}

TEST(WordPanels, AreThoseOfThePlainWay) {
  Random random(21);
  for_each_isa([&] {
    for (const auto& [order, name] : kWordCases)
      for (const bool is_turned : {false, true})
        for (const bool is_short : {false, true}) {
          const WeightFormat format = parse_weight_format(name).value();
          const int64_t whole = format.group > 0 ? format.group : 192;
          const int64_t columns = is_short ? 8 * random.between(1, whole / 8) : whole;
          const int64_t cols = format.group > 0 ? whole : columns;
          SCOPED_TRACE(random.trace() + ", " + name + ", columns " + std::to_string(columns));
          const Words of(order, columns, is_turned, random);
          const std::vector<float> scales = scales_for(format, random);
          std::vector<float> zeros;
          for (int64_t row = 0; row < kWordRows; ++row)
            zeros.push_back(static_cast<float>(random.between(0, 15)));
          const std::vector<std::byte> expected = plain_group(of, format, cols, scales, zeros);
          std::vector<std::byte> group(expected.size() + 1, std::byte{0x5a});
          ASSERT_TRUE(repack_words(of.words, format, cols, columns, scales.data(), zeros.data(),
                                   group.data()));
          EXPECT_EQ(group.back(), std::byte{0x5a});
          group.pop_back();
          EXPECT_EQ(group, expected);
        }
  });
}

TEST(WordPanels, AreRefusedWhereTheyWouldBeNoNumbers) {
  Random random(22);
  const WeightFormat int4 = parse_weight_format("int4-g32").value();
  const WeightFormat fp8 = parse_weight_format("fp8-g32").value();
  for_each_isa([&] {
    const Words nibbles(WordOrder::kNibbles, 32, false, random);
    const std::vector<float> good(kWordRows, 0.5f);
    std::vector<std::byte> group(1024);
    const auto packs = [&](const std::vector<float>& scales, const std::vector<float>& zeros) {
      return repack_words(nibbles.words, int4, 32, 32, scales.data(), zeros.data(), group.data());
    };
    EXPECT_TRUE(packs(good, good));
    for (const float bad : {65520.0f, -65520.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> broken = good;
      broken[static_cast<size_t>(random.between(0, kWordRows - 1))] = bad;
      EXPECT_FALSE(packs(broken, good)) << bad;
      EXPECT_FALSE(packs(good, broken)) << bad;
    }
    for (const uint8_t code : {0x7f, 0xff}) {
      Words bytes(WordOrder::kBytes, 32, false, random);
      const auto fits = [&] {
        return repack_words(bytes.words, fp8, 32, 32, good.data(), good.data(), group.data());
      };
      EXPECT_TRUE(fits());
      const int64_t row = random.between(0, kWordRows - 1), col = random.between(0, 31);
      bytes.bytes[static_cast<size_t>(row * bytes.words.row_bytes + col)] = std::byte{code};
      EXPECT_FALSE(fits());
    }
    // No whole words, and formats whose codes lie otherwise.
    EXPECT_FALSE(repack_words(nibbles.words, int4, 32, 12, good.data(), good.data(), group.data()));
    for (const char* other : {"q4_k", "bf16"})
      EXPECT_FALSE(repack_words(nibbles.words,
                                parse_weight_format(other).value_or(WeightFormat::plain({})), 256,
                                32, good.data(), good.data(), group.data()));
  });
}

}  // namespace
}  // namespace sluice::kernels
