// Quantisation to K types (kernels/cpu/k_quantise.h): against plainer searches, exact values, and
// what nobody thinks of.
#include <algorithm>
#include <limits>

#include "kernels/k_layout.h"
#include "kernels/quantise.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kKRows = WeightFormat::kPanelRows;

// What a type's whole numbers may be.
struct KType {
  const char* name;
  int low, high, least_scale, most_scale;
  bool has_minima;

  WeightFormat format() const { return parse_weight_format(name).value(); }
  int64_t part() const { return k_layout(format().encoding).part_columns; }
};
constexpr KType kMadeKTypes[] = {{"q2_k", 0, 3, 0, 15, true},
                                 {"q3_k", -4, 3, -32, 31, false},
                                 {"q4_k", 0, 15, 0, 63, true},
                                 {"q5_k", 0, 31, 0, 63, true},
                                 {"q6_k", -32, 31, -128, 127, false}};

// Quantised and back; empty where that was refused.
std::vector<float> there_and_back(const KType& type, const std::vector<float>& rows, int64_t cols,
                                  const float* importance = nullptr, bool by_size = false) {
  const WeightFormat format = type.format();
  const int64_t count = std::ssize(rows) / cols;
  const std::vector<float> ones(static_cast<size_t>(cols), 1);
  if (!importance && !by_size) importance = ones.data();
  std::vector<std::byte> panel(static_cast<size_t>(format.panel_bytes(cols)) + 1);
  panel.back() = std::byte{0x5a};
  if (!quantise_panel(format, {RangeSearch::kClip, importance}, rows.data(), cols, count, cols,
                      panel.data()))
    return {};
  EXPECT_EQ(panel.back(), std::byte{0x5a});
  std::vector<float> back(rows.size());
  dequantise_panel(format, panel.data(), count, cols, back.data(), cols);
  for (size_t i = 0; i < back.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / cols, col = static_cast<int64_t>(i) % cols;
    EXPECT_NEAR(back[i], reference::quantised_value(format, panel.data(), cols, row, col),
                std::fabs(rows[i]) * 0x1p-18);
  }
  return back;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b,
                     const float* importance = nullptr, int64_t cols = 1) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double weight = importance ? importance[static_cast<int64_t>(i) % cols] : 1;
    sum += weight * (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return sum;
}

// Each part's range, d and m of the largest, nearest whole numbers: one row.
std::vector<float> plainly(const KType& type, const float* x, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  for (int64_t group = 0; group < cols; group += 256) {
    const int64_t end = std::min(cols, group + 256);
    std::vector<float> scales, minima;
    float largest = 0, deepest = 0;
    for (int64_t part = group; part < end; part += type.part()) {
      const float* last = x + std::min(end, part + type.part());
      const float low = std::min(0.0f, *std::min_element(x + part, last));
      const float high = std::max(0.0f, *std::max_element(x + part, last));
      const float most = std::max(high, -low);
      scales.push_back(type.has_minima ? (high - low) / static_cast<float>(type.high)
                                       : most / static_cast<float>(type.high));
      minima.push_back(type.has_minima ? -low : 0);
      largest = std::max(largest, scales.back());
      deepest = std::max(deepest, minima.back());
    }
    const float d = largest / static_cast<float>(type.most_scale);
    const float m = deepest / static_cast<float>(type.most_scale);
    for (int64_t i = group; i < end; ++i) {
      const auto part = static_cast<size_t>((i - group) / type.part());
      const float f = d > 0 ? d * std::nearbyint(scales[part] / d) : 0;
      const float g = m > 0 ? m * std::nearbyint(minima[part] / m) : 0;
      const float code =
          f > 0 ? std::clamp(std::nearbyint((x[i] + g) / f), static_cast<float>(type.low),
                             static_cast<float>(type.high))
                : 0;
      out[static_cast<size_t>(i)] = f * code - g;
    }
  }
  return out;
}

TEST(QuantiseToKTypes, IsNeverWorseThanPlainRanges) {
  Random random(21);
  for (const KType& type : kMadeKTypes) {
    double ours = 0, measured = 0;
    for (const int64_t cols : {1, 15, 16, 17, 255, 256, 257, 511, 768}) {
      const int64_t count = random.between(1, 16);
      SCOPED_TRACE(std::string(type.name) + ", " + std::to_string(count) + " x " +
                   std::to_string(cols) + ", " + random.trace());
      auto rows = random.normal(count * cols, 0.02f);
      for (float& value : rows)
        if (random.between(0, 50) == 0) value *= 8;
      const auto back = there_and_back(type, rows, cols);
      ASSERT_EQ(back.size(), rows.size());
      for (int64_t row = 0; row < count; ++row) {
        const std::vector<float> of(rows.begin() + row * cols, rows.begin() + (row + 1) * cols);
        const std::vector<float> got(back.begin() + row * cols, back.begin() + (row + 1) * cols);
        const double error = squared_error(of, got),
                     plain = squared_error(of, plainly(type, of.data(), cols));
        // d and m are rounded to 11 bits, fewer below 2^-14.
        EXPECT_LE(error, plain * 1.001 + 2e-5 * squared_error(of, std::vector<float>(of.size())));
        if (cols >= 255) {
          EXPECT_LT(error, plain);
          ours += error / plain;
          ++measured;
        }
      }
    }
    EXPECT_LT(ours, 0.88 * measured) << type.name;
  }
}

// Of one part alone every scale can be had: all of them, in small steps.
TEST(QuantiseToKTypes, FindsTheBestOfManyScalesOfAPart) {
  Random random(22);
  double ours = 0, best = 0;
  for (const KType& type : kMadeKTypes) {
    if (type.has_minima) continue;
    for (int attempt = 0; attempt < 40; ++attempt) {
      const auto row = random.normal(16);
      const double error = squared_error(row, there_and_back(type, row, 16));
      float most = 0;
      for (const float value : row) most = std::max(most, std::fabs(value));
      double least = INFINITY;
      for (int i = 1; i <= 4000; ++i)
        for (const float sign : {-1.0f, 1.0f}) {
          const float f =
              sign * most * 1.5f * static_cast<float>(i) / (4000 * static_cast<float>(type.high));
          std::vector<float> values;
          for (const float value : row)
            values.push_back(f * std::clamp(std::nearbyint(value / f), static_cast<float>(type.low),
                                            static_cast<float>(type.high)));
          least = std::min(least, squared_error(row, values));
        }
      ours += error / least;
      best += 1;
      EXPECT_LT(error, 1.5 * least) << type.name << " " << attempt << ", " << random.trace();
    }
  }
  EXPECT_LT(ours / best, 1.04);
}

TEST(QuantiseToKTypes, FindsTheBestOfManyRangesOfAPart) {
  Random random(23);
  for (const KType& type : kMadeKTypes) {
    if (!type.has_minima) continue;
    double ours = 0;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const auto row = random.normal(type.part());
      const double error = squared_error(row, there_and_back(type, row, type.part()));
      double least = INFINITY;
      for (int low = 0; low <= 120; ++low)
        for (int high = 0; high <= 120; ++high) {
          const float g = 0.025f * static_cast<float>(low);
          const float f = (g + 0.025f * static_cast<float>(high)) / static_cast<float>(type.high);
          std::vector<float> values;
          for (const float value : row)
            values.push_back(f * (f > 0 ? std::clamp(std::nearbyint((value + g) / f), 0.0f,
                                                     static_cast<float>(type.high))
                                        : 0) -
                             g);
          least = std::min(least, squared_error(row, values));
        }
      ours += error / least / 8;
    }
    EXPECT_LT(ours, 1.04) << type.name << ", " << random.trace();
  }
}

// Values that the type holds come back to the bit, wherever the scales' f16 is normal.
TEST(QuantiseToKTypes, WhatATypeHoldsComesBackAsItIs) {
  Random random(24);
  for (const KType& type : kMadeKTypes)
    for (const float size : {1.0f, 0.003f, 37.0f}) {
      SCOPED_TRACE(std::string(type.name) + ", " + random.trace());
      const int64_t cols = 512;
      std::vector<float> rows(static_cast<size_t>(kKRows * cols));
      for (int64_t row = 0; row < kKRows; ++row)
        for (int64_t part = 0; part < cols; part += type.part()) {
          const float d = f16_to_f32(f32_to_f16(size * static_cast<float>(row + 7 + part / 256)));
          const float m = type.has_minima ? f16_to_f32(f32_to_f16(2.7f * d)) : 0;
          // Some part has the largest of each; zero is in every range.
          const int64_t s = part % 256 == 0 ? (type.has_minima ? type.most_scale : type.least_scale)
                                            : random.between(type.most_scale / 2, type.most_scale);
          const int64_t n = part % 256 == 0 ? type.most_scale : random.between(1, s / 3);
          for (int64_t i = 0; i < type.part(); ++i) {
            const int64_t q = i == 0   ? type.low
                              : i == 1 ? type.high
                                       : random.between(type.low, type.high);
            rows[static_cast<size_t>(row * cols + part + i)] =
                d * static_cast<float>(s) * static_cast<float>(q) -
                (type.has_minima ? m * static_cast<float>(n) : 0);
          }
        }
      const auto back = there_and_back(type, rows, cols);
      ASSERT_EQ(back.size(), rows.size());
      int64_t different = 0;
      for (size_t i = 0; i < rows.size(); ++i) different += back[i] != rows[i];
      EXPECT_EQ(different, 0);
    }
}

TEST(QuantiseToKTypes, ColumnsCountByTheirImportance) {
  Random random(25);
  for (const KType& type : kMadeKTypes) {
    const int64_t cols = 300;
    const auto rows = random.normal(kKRows * cols);
    std::vector<float> importance(static_cast<size_t>(cols));
    for (float& value : importance) value = std::exp(random.normal(1, 2)[0]);
    const auto alike = there_and_back(type, rows, cols);
    const auto weighed = there_and_back(type, rows, cols, importance.data());
    EXPECT_LT(squared_error(rows, weighed, importance.data(), cols),
              0.97 * squared_error(rows, alike, importance.data(), cols))
        << type.name;
    // How large the weights are altogether does not matter, nor that all are 0.
    for (float& value : importance) value *= 0x1p60f;
    EXPECT_EQ(there_and_back(type, rows, cols, importance.data()), weighed) << type.name;
    const std::vector<float> none(static_cast<size_t>(cols));
    for (const float value : there_and_back(type, rows, cols, none.data()))
      EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(QuantiseToKTypes, WithoutImportanceLargeValuesCountMore) {
  Random random(28);
  for (const KType& type : kMadeKTypes) {
    const auto rows = random.normal(kKRows * 512);
    const auto alike = there_and_back(type, rows, 512);
    const auto by_size = there_and_back(type, rows, 512, nullptr, true);
    double large = 0, large_alike = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::fabs(rows[i]) < 2) continue;
      large += std::pow(by_size[i] - rows[i], 2);
      large_alike += std::pow(alike[i] - rows[i], 2);
    }
    EXPECT_LT(large, large_alike) << type.name << ", " << random.trace();
    EXPECT_LT(squared_error(rows, by_size), 1.06 * squared_error(rows, alike)) << type.name;
  }
}

TEST(QuantiseToKTypes, ZerosAndEqualValuesComeBack) {
  for (const KType& type : kMadeKTypes)
    for (const int64_t cols : {1, 40, 256, 300})
      for (const float value : {0.0f, 1.0f, -1.0f, -0.37f, 1e-3f, 30000.0f}) {
        const auto back =
            there_and_back(type, std::vector<float>(static_cast<size_t>(5 * cols), value), cols);
        ASSERT_EQ(std::ssize(back), 5 * cols);
        for (const float got : back)
          ASSERT_NEAR(got, value, std::fabs(value) * 0x1p-9) << type.name << " of " << cols;
      }
}

TEST(QuantiseToKTypes, TinyAndHugeValuesStayNumbers) {
  Random random(26);
  for (const KType& type : kMadeKTypes) {
    for (const float size : {1e-44f, 1e-38f, 1e-30f, 1e-12f})
      for (const float got : there_and_back(type, random.normal(kKRows * 70, size), 70))
        ASSERT_LT(std::fabs(got), 10 * size + 1e-6f) << type.name;
    for (const float size : {1e5f, 1e30f, 1e37f}) {
      const auto rows = random.normal(kKRows * 70, size);
      const auto back = there_and_back(type, rows, 70);
      if (type.has_minima && size > 1e6f) {
        EXPECT_TRUE(back.empty()) << type.name;  // no f16 scale reaches it
        continue;
      }
      ASSERT_EQ(back.size(), rows.size()) << type.name << size;
      double error = 0, sum = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        error += std::pow((double{back[i]} - rows[i]) / size, 2);
        sum += std::pow(rows[i] / size, 2);
      }
      EXPECT_LT(error, 0.1 * sum) << type.name;
    }
    EXPECT_TRUE(there_and_back(type, {1.0f, 3e38f}, 2).empty()) << type.name;
  }
}

TEST(QuantiseToKTypes, RefusesWhatIsNotFiniteAndOtherTypes) {
  for (const KType& type : kMadeKTypes)
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> rows(3 * 300, 0.5f);
      rows[899] = bad;
      EXPECT_TRUE(there_and_back(type, rows, 300).empty()) << type.name << " " << bad;
    }
  for (const char* name : {"q4_1", "q5_1", "iq1", "iq2", "bf16"}) {
    const WeightFormat format = parse_weight_format(name).value();
    EXPECT_FALSE(can_quantise_to(format)) << name;
    const std::vector<float> row(256, 0.5f);
    std::vector<std::byte> panel(16 * 512);
    EXPECT_FALSE(quantise_panel(format, {}, row.data(), 256, 1, 256, panel.data())) << name;
  }
}

TEST(QuantiseToKTypes, GivesTheSameBitsOnEveryProcessorAndInAnyCompany) {
  Random random(27);
  const int64_t cols = 600;
  const auto rows = random.normal(kKRows * cols);
  for (const KType& type : kMadeKTypes) {
    std::vector<std::vector<std::byte>> panels;
    for_each_isa([&] {
      std::vector<std::byte> panel(static_cast<size_t>(type.format().panel_bytes(cols)));
      ASSERT_TRUE(quantise_panel(type.format(), {}, rows.data(), cols, kKRows, cols, panel.data()));
      panels.push_back(panel);
    });
    for (const auto& panel : panels) EXPECT_EQ(panel, panels.front()) << type.name;
    // A row is what it is, whoever is beside it.
    const auto all = there_and_back(type, rows, cols);
    const std::vector<float> one(rows.begin() + 9 * cols, rows.begin() + 10 * cols);
    EXPECT_EQ(there_and_back(type, one, cols),
              std::vector<float>(all.begin() + 9 * cols, all.begin() + 10 * cols));
  }
}

}  // namespace
}  // namespace sluice::kernels
