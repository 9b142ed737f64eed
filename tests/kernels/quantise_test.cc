#include "kernels/quantise.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/quantised_layout.h"
#include "src/base/microscaling.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

const std::vector<std::string> kFormats{"int4-g32", "int4-g64", "int4-g128", "int8", "int8-g32",
                                        "int8-g64", "nf4-g64",  "nf4-g32",   "fp8",  "fp8-g128",
                                        "mxfp4",    "q4_0",     "iq4"};

WeightFormat named(const std::string& name) { return parse_weight_format(name).value(); }

struct Panel {
  WeightFormat format;
  int64_t rows, cols;
  std::vector<std::byte> bytes;

  Panel(const WeightFormat& f, int64_t row_count, int64_t col_count)
      : format(f),
        rows(row_count),
        cols(col_count),
        bytes(static_cast<size_t>(f.panel_bytes(col_count))) {}
  float at(int64_t row, int64_t col) const {
    return reference::quantised_value(format, bytes.data(), cols, row, col);
  }
  double squared_error(const std::vector<float>& source) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const double off = double{at(r, c)} - source[static_cast<size_t>(r * cols + c)];
        sum += off * off;
      }
    return sum;
  }
};

// The widest step between neighbouring codes, as a share of the group's range.
double step_share(Encoding encoding) {
  switch (encoding) {
    case Encoding::kInt4: return 1.0 / 15;
    // The largest is 8 steps, and where it is one of the other sign, as large, a step off.
    case Encoding::kQ4_0: return 2.0 / 8;
    case Encoding::kIq4: return 2.0 * (127 - 113) / 127;
    case Encoding::kInt8: return 1.0 / 254;
    case Encoding::kNf4: return 0.3039 / 2;
    // The largest is 4 to 8 times the scale, steps are 2 there, and past 6 there is no code.
    case Encoding::kMxfp4: return 2.0 / 4;
    default: return 32.0 / 448;
  }
}

TEST(WeightFormat, NamesAreReadAndWritten) {
  for (const std::string& name : kFormats) EXPECT_EQ(format_name(named(name)), name);
  EXPECT_EQ(named("int4").group, 64);
  EXPECT_EQ(named("nf4").group, 64);
  EXPECT_EQ(named("bf16"), WeightFormat::plain(DType::kBF16));
  for (const char* bad : {"int4-", "int4-g", "int4-g16", "int4-g64x", "int5", "int4-64", "i8", "",
                          "mxfp4-g32", "mxfp4-", "q4_0-g32", "q4_0-"})
    EXPECT_FALSE(parse_weight_format(bad).has_value()) << bad;
}

TEST(WeightFormat, SizesCountScalesAndPadding) {
  const WeightFormat int4 = named("int4-g64");
  EXPECT_EQ(int4.row_bytes(4096), 4096 / 2 + 4096 / 64 * 4);  // 4.5 bits a weight
  EXPECT_EQ(int4.bytes(1, 4096), 16 * int4.row_bytes(4096));
  EXPECT_EQ(int4.padded_columns(65), 128);
  EXPECT_EQ(named("int8").row_bytes(100), 128 + 4);
  EXPECT_EQ(named("mxfp4").row_bytes(2880), 2880 / 2 + 2880 / 32);  // 4.25 bits a weight
  EXPECT_EQ(named("mxfp4").row_bytes(33), 2 * 17);
  EXPECT_EQ(named("q4_0").row_bytes(4096), 4096 / 32 * 18);  // a block of 18 bytes
  EXPECT_EQ(named("q4_0").row_bytes(33), 2 * 18);
  EXPECT_EQ(named("iq4").row_bytes(4096), 4096 / 32 * 20);
  EXPECT_FALSE(named("q4_0").is_k());
  EXPECT_EQ(WeightFormat::plain(DType::kF16).bytes(3, 5), 30);
}

TEST(QuantisePanel, ErrorIsAtMostHalfAStep) {
  Random random(1);
  for_each_isa([&] {
    for (const std::string& name : kFormats)
      for (const int64_t cols : {1, 7, 31, 64, 65, 130, 257, 512}) {
        SCOPED_TRACE(name + ", cols " + std::to_string(cols) + ", " + random.trace());
        Panel panel(named(name), random.between(1, 16), cols);
        const auto source = random.normal(panel.rows * cols, 0.02f);
        ASSERT_TRUE(quantise_panel(panel.format, {RangeSearch::kMinMax, nullptr}, source.data(),
                                   cols, panel.rows, cols, panel.bytes.data()));
        const int64_t columns = panel.format.group_columns(cols);
        for (int64_t r = 0; r < panel.rows; ++r)
          for (int64_t begin = 0; begin < cols; begin += columns) {
            const int64_t end = std::min(cols, begin + columns);
            float low = 0, high = 0;
            for (int64_t c = begin; c < end; ++c) {
              low = std::min(low, source[static_cast<size_t>(r * cols + c)]);
              high = std::max(high, source[static_cast<size_t>(r * cols + c)]);
            }
            const double range = panel.format.encoding == Encoding::kInt4 ? double{high} - low
                                 : panel.format.encoding == Encoding::kInt8
                                     ? 2.0 * std::max(high, -low)
                                     : double{std::max(high, -low)};
            // Half a step, and the rounding of a half-precision scale and zero over 15 steps.
            const double allowed =
                range * (step_share(panel.format.encoding) * 0.5 *
                             (panel.format.encoding == Encoding::kNf4 ? 2 : 1.0) +
                         0x1p-10) +
                1e-7;
            for (int64_t c = begin; c < end; ++c)
              ASSERT_NEAR(panel.at(r, c), source[static_cast<size_t>(r * cols + c)], allowed)
                  << "row " << r << " column " << c;
          }
      }
  });
}

TEST(QuantisePanel, GivesTheReferenceCodes) {
  Random random(2);
  for_each_isa([&] {
    for (const std::string& name : kFormats) {
      SCOPED_TRACE(name + ", " + random.trace());
      const int64_t cols = random.between(1, 300);
      Panel fast(named(name), random.between(1, 16), cols);
      Panel plain(fast.format, fast.rows, cols);
      const auto source = random.normal(fast.rows * cols);
      ASSERT_TRUE(quantise_panel(fast.format, {RangeSearch::kMinMax, nullptr}, source.data(), cols,
                                 fast.rows, cols, fast.bytes.data()));
      reference::quantise_panel(plain.format, source.data(), cols, plain.rows, cols,
                                plain.bytes.data());
      // A value half way between two codes may go either way: the error is the same.
      const double expected = plain.squared_error(source);
      EXPECT_NEAR(fast.squared_error(source), expected, 1e-3 * expected + 1e-12);
    }
  });
}

TEST(QuantisePanel, ClippingLowersTheErrorAndFollowsImportance) {
  Random random(3);
  for_each_isa([&] {
    for (const char* name : {"int4-g32", "int4-g64", "int4-g128"}) {
      SCOPED_TRACE(name);
      const int64_t cols = 256;
      auto source = random.normal(16 * cols);
      for (int64_t r = 0; r < 16; ++r) source[static_cast<size_t>(r * cols + 3)] *= 3;  // outliers
      Panel plain(named(name), 16, cols), clipped(plain.format, 16, cols),
          weighted(plain.format, 16, cols);
      ASSERT_TRUE(quantise_panel(plain.format, {RangeSearch::kMinMax, nullptr}, source.data(), cols,
                                 16, cols, plain.bytes.data()));
      ASSERT_TRUE(
          quantise_panel(clipped.format, {}, source.data(), cols, 16, cols, clipped.bytes.data()));
      EXPECT_LT(clipped.squared_error(source), plain.squared_error(source) * 0.97);
      std::vector<float> importance(cols, 1e-6f);
      importance[3] = 1;
      ASSERT_TRUE(quantise_panel(weighted.format, {RangeSearch::kClip, importance.data()},
                                 source.data(), cols, 16, cols, weighted.bytes.data()));
      double of_clipped = 0, of_weighted = 0;
      for (int64_t r = 0; r < 16; ++r) {
        const double value = source[static_cast<size_t>(r * cols + 3)];
        of_clipped += std::pow(clipped.at(r, 3) - value, 2);
        of_weighted += std::pow(weighted.at(r, 3) - value, 2);
      }
      EXPECT_LE(of_weighted, of_clipped);
    }
  });
}

TEST(QuantisePanel, EqualValuesComeBack) {
  for_each_isa([&] {
    for (const std::string& name : kFormats)
      for (const float value : {0.0f, 1.0f, -0.37f, 1e-4f, 30000.0f}) {
        SCOPED_TRACE(name + " of " + std::to_string(value));
        const int64_t cols = 70;
        Panel panel(named(name), 16, cols);
        const std::vector<float> source(16 * cols, value);
        for (const RangeSearch search : {RangeSearch::kMinMax, RangeSearch::kClip}) {
          ASSERT_TRUE(quantise_panel(panel.format, {search, nullptr}, source.data(), cols, 16, cols,
                                     panel.bytes.data()));
          for (int64_t c = 0; c < cols; ++c)
            ASSERT_NEAR(panel.at(5, c), value, std::fabs(value) * (name == "mxfp4" ? 0.25 : 0x1p-9))
                << c;
        }
      }
  });
}

TEST(QuantisePanel, TinyValuesBecomeZeroAndNeverNaN) {
  for_each_isa([&] {
    for (const std::string& name : kFormats) {
      Panel panel(named(name), 16, 64);
      Random random(4);
      const auto source = random.normal(16 * 64, 1e-30f);
      ASSERT_TRUE(quantise_panel(panel.format, {}, source.data(), 64, 16, 64, panel.bytes.data()));
      for (int64_t c = 0; c < 64; ++c) ASSERT_LT(std::fabs(panel.at(0, c)), 1e-6f) << name;
    }
  });
}

TEST(QuantisePanel, RefusesWhatIsNotFinite) {
  for_each_isa([&] {
    for (const std::string& name : kFormats)
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        Panel panel(named(name), 5, 150);
        std::vector<float> source(5 * 150, 0.5f);
        source[4 * 150 + 149] = bad;
        EXPECT_FALSE(
            quantise_panel(panel.format, {}, source.data(), 150, 5, 150, panel.bytes.data()))
            << name << " " << bad;
      }
    Panel panel(named("int4"), 1, 64);
    const std::vector<float> source(64, 1e30f);  // no f16 scale reaches it
    EXPECT_FALSE(quantise_panel(panel.format, {}, source.data(), 64, 1, 64, panel.bytes.data()));
  });
}

TEST(QuantisePanel, UnpackingGivesTheReferenceValues) {
  Random random(5);
  for_each_isa([&] {
    for (const std::string& name : kFormats) {
      const int64_t cols = random.between(1, 400);
      Panel panel(named(name), random.between(1, 16), cols);
      const auto source = random.normal(panel.rows * cols);
      ASSERT_TRUE(quantise_panel(panel.format, {}, source.data(), cols, panel.rows, cols,
                                 panel.bytes.data()));
      std::vector<float> back(source.size());
      dequantise_panel(panel.format, panel.bytes.data(), panel.rows, cols, back.data(), cols);
      for (int64_t r = 0; r < panel.rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          ASSERT_NEAR(back[static_cast<size_t>(r * cols + c)], panel.at(r, c),
                      std::fabs(panel.at(r, c)) * 4 * kRounding + 1e-30)
              << name << " row " << r << " column " << c;
    }
  });
}

TEST(QuantisePanel, PackedGroupsKeepTheirCodes) {
  Random random(6);
  for (const std::string& name : kFormats) {
    const WeightFormat format = named(name);
    const int64_t cols = 256, columns = format.group_columns(cols);
    std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(cols)));
    std::vector<uint8_t> codes(static_cast<size_t>(16 * columns));
    float scales[16], zeros[16];
    for (int i = 0; i < 16; ++i)
      scales[i] = 0.25f * static_cast<float>(i + 1), zeros[i] = static_cast<float>(i % 16);
    if (format.encoding == Encoding::kMxfp4)  // all that f32 has, from its smallest
      for (int i = 0; i < 16; ++i) scales[i] = std::ldexp(1.0f, std::min(17 * i - 127, 125));
    for (int64_t group = 0; group < format.groups(cols); ++group) {
      for (uint8_t& code : codes)
        code = static_cast<uint8_t>(random.between(0, is_four_bit(format.encoding) ? 15 : 126));
      pack_group(format, cols, group, codes.data(), scales, zeros, panel.data());
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const float code = codes[static_cast<size_t>(r * columns + c)];
          const float value =
              format.encoding == Encoding::kInt4    ? code - zeros[r]
              : format.encoding == Encoding::kQ4_0  ? code - 8
              : format.encoding == Encoding::kInt8  ? code - 128
              : format.encoding == Encoding::kNf4   ? kNf4Values[static_cast<int>(code)]
              : format.encoding == Encoding::kIq4   ? kIq4Values[static_cast<int>(code)]
              : format.encoding == Encoding::kMxfp4 ? kE2m1Values[static_cast<int>(code)]
                                                    : e4m3_to_f32(static_cast<uint8_t>(code));
          ASSERT_EQ(reference::quantised_value(format, panel.data(), cols, r, group * columns + c),
                    value * scales[r])
              << name << " row " << r << " column " << c;
        }
    }
  }
}

TEST(E4m3, EveryCodeComesBackAndTheNearestIsTaken) {
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(f32_to_e4m3(value), code) << value;
    values.push_back(value);
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  Random random(7);
  for (float x : random.normal(20000, 5.0f)) {
    const float got = e4m3_to_f32(f32_to_e4m3(x));
    double least = 1e9;
    for (float value : values) least = std::min(least, std::fabs(double{value} - x));
    ASSERT_DOUBLE_EQ(std::fabs(double{got} - x), least) << x;
  }
}

TEST(E2m1, EveryCodeComesBackAndTheNearestIsTaken) {
  for (uint8_t code = 0; code < 16; ++code) EXPECT_EQ(f32_to_e2m1(kE2m1Values[code]), code);
  Random random(9);
  for (const float x : random.normal(2000, 3.0f)) {
    float least = 1e9f;
    for (const float value : kE2m1Values) least = std::min(least, std::fabs(value - x));
    ASSERT_EQ(std::fabs(kE2m1Values[f32_to_e2m1(x)] - x), least) << x;
  }
  // Ties go to even codes.
  const std::pair<float, float> ties[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                          {2.5f, 2},  {3.5f, 4},  {-5, -4}};
  for (const auto& [tie, value] : ties) EXPECT_EQ(kE2m1Values[f32_to_e2m1(tie)], value) << tie;
}

// Whatever scales and codes are there, what was packed is what comes out, to the bit, in every row.
TEST(Mxfp4, AnyScaleAndCodeComesBackToTheBit) {
  for_each_isa([] {
    const WeightFormat format = named("mxfp4");
    constexpr int64_t kCols = 96;
    std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(kCols)));
    std::vector<uint8_t> codes(16 * 32);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>((i + i / 32) % 16);
    for (int first = 0; first <= 252; first += 48) {
      for (int64_t group = 0; group < 3; ++group) {
        float scales[16];
        for (int r = 0; r < 16; ++r)
          scales[r] =
              std::ldexp(1.0f, std::min(first + static_cast<int>(group) * 16 + r, 252) - 127);
        pack_group(format, kCols, group, codes.data(), scales, nullptr, panel.data());
      }
      std::vector<float> rows(16 * kCols);
      dequantise_panel(format, panel.data(), 16, kCols, rows.data(), kCols);
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t c = 0; c < kCols; ++c) {
          const int byte = std::min(first + static_cast<int>(c / 32 * 16 + r), 252);
          const float value =
              std::ldexp(kE2m1Values[codes[static_cast<size_t>(r * 32 + c % 32)]], byte - 127);
          ASSERT_EQ(rows[static_cast<size_t>(r * kCols + c)], value) << byte << " row " << r;
          ASSERT_EQ(reference::quantised_value(format, panel.data(), kCols, r, c), value) << byte;
        }
    }
  });
}

// Published: below the error of 4 bits in even steps of the largest magnitude, on normal values.
TEST(Nf4, BeatsEvenStepsOfTheLargestMagnitude) {
  Random random(8);
  const auto source = random.normal(16 * 4096);
  Panel nf4(named("nf4"), 16, 4096);
  ASSERT_TRUE(quantise_panel(nf4.format, {}, source.data(), 4096, 16, 4096, nf4.bytes.data()));
  double even = 0;
  for (size_t begin = 0; begin < source.size(); begin += 64) {
    float most = 0;
    for (size_t i = begin; i < begin + 64; ++i) most = std::max(most, std::fabs(source[i]));
    for (size_t i = begin; i < begin + 64; ++i)
      even += std::pow(std::nearbyint(source[i] / most * 7) * most / 7 - source[i], 2);
  }
  EXPECT_LT(nf4.squared_error(source), even);
}

}  // namespace
}  // namespace sluice::kernels
