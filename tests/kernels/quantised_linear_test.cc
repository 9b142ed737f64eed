#include "kernels/quantised_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/block_panels.h"
#include "kernels/k_layout.h"
#include "kernels/norm.h"
#include "kernels/quantise.h"
#include "src/model/foreign/ggml_blocks.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr float kUntouched = 12345.5f;

struct Operands {
  WeightFormat format;
  int64_t m, n, k;
  std::vector<float> x, bias, y, weights;
  std::vector<std::byte> rounded, w;

  Operands(const std::string& name, int64_t rows, int64_t out, int64_t in, Random& random)
      : format(parse_weight_format(name).value()), m(rows), n(out), k(in) {
    x = random.normal(padded_rows(m) * k);
    rounded = stored_as(DType::kBF16, x);
    bias = random.normal(n);
    weights = random.normal(n * k, 0.1f);
    w.resize(static_cast<size_t>(format.bytes(n, k)));
    y.assign(static_cast<size_t>(padded_rows(m) * ldy()), kUntouched);
    if (format.is_k()) {
      put_blocks(random);
      return;
    }
    for (int64_t row = 0; row < n; row += 16)
      EXPECT_TRUE(quantise_panel(format, {}, weights.data() + row * k, k,
                                 std::min<int64_t>(16, n - row), k,
                                 w.data() + row * format.row_bytes(k)));
  }
  // Random blocks with scales of a few thousandths.
  void put_blocks(Random& random) {
    BlockType type = BlockType::kNone;
    if (format.encoding == Encoding::kIq1 || format.encoding == Encoding::kIq2)
      return put_parts(random);
    type = BlockType::kQ4_0;
    while (k_type_format(type) != format) type = static_cast<BlockType>(static_cast<int>(type) + 1);
    const int64_t bytes = block_layout(type).bytes, blocks = k / block_layout(type).elements;
    std::vector<std::byte> rows(static_cast<size_t>(16 * blocks * bytes));
    for (int64_t row = 0; row < n; row += 16) {
      const std::byte* addresses[16];
      for (std::byte& byte : rows) byte = static_cast<std::byte>(random.between(0, 255));
      for (int64_t at = 0; at < 16 * blocks; ++at)
        for (const int64_t scale : {int64_t{0}, int64_t{2}, bytes - 4, bytes - 2}) {
          const bool is_first =
              format.encoding != Encoding::kQ2K && k_layout(format.encoding).has_minima;
          if (is_first ? scale > 2 : scale < bytes - 4) continue;
          if (!is_first && format.encoding != Encoding::kQ2K && scale != bytes - 2) continue;
          const uint16_t half = f32_to_f16(0.00001f * static_cast<float>(random.between(-99, 99)));
          std::memcpy(rows.data() + at * bytes + scale, &half, 2);
        }
      for (int64_t i = 0; i < 16; ++i) addresses[i] = rows.data() + i * blocks * bytes;
      ASSERT_TRUE(repack_blocks(type, format, addresses, k, w.data() + row * format.row_bytes(k)));
    }
  }
  // Any codes, with whole-number scales of parts.
  void put_parts(Random& random) {
    std::vector<uint8_t> codes(16 * 256);
    std::vector<int8_t> scales(16 * 16);
    std::vector<float> d(16);
    const int64_t group_bytes = format.panel_bytes(256);
    for (int64_t at = 0; at < static_cast<int64_t>(w.size()); at += group_bytes) {
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random.between(0, 7));
      for (int8_t& scale : scales) scale = static_cast<int8_t>(random.between(-5, 31));
      for (float& value : d) value = 0.00001f * static_cast<float>(random.between(-99, 99));
      pack_parts(format, codes.data(), scales.data(), d.data(), w.data() + at);
    }
  }
  int64_t ldy() const { return n + 3; }
  Activations activations() const {
    return {x.data(), reinterpret_cast<const uint16_t*>(rounded.data()), m, k, k};
  }
  std::string name() const {
    return format_name(format) + ", m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
           std::to_string(k);
  }

  void run(const QuantisedOptions& options, bool has_bias = true) {
    std::vector<std::byte> scratch(
        static_cast<size_t>(quantised_scratch_bytes(format, m, k, options)));
    linear_quantised(activations(), w.data(), format, n, has_bias ? bias.data() : nullptr, y.data(),
                     ldy(), options, scratch);
  }
  // Against the reference; `weight_rounding`: relative error that the kernel may add to a weight.
  void expect_right(const QuantisedOptions& options, double weight_rounding, bool has_bias = true) {
    SCOPED_TRACE(name());
    std::vector<float> expected(y.size(), kUntouched);
    reference::linear_quantised(activations(), w.data(), format, n,
                                has_bias ? bias.data() : nullptr, expected.data(), ldy(), options);
    std::vector<float> actual_part, expected_part;
    std::vector<double> allowed;
    std::vector<double> sizes;  // of the weights; codes and their zero are multiplied apart
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < k; ++c)
        sizes.push_back(std::fabs(double{reference::quantised_value(format, w.data(), k, r, c)}) +
                        0.15);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t r = 0; r < ldy(); ++r) {
        const auto at = static_cast<size_t>(i * ldy() + r);
        if (r >= n) {
          ASSERT_EQ(y[at], kUntouched) << "past the row's end";
          continue;
        }
        double magnitude = std::fabs(bias[static_cast<size_t>(r)]);
        for (int64_t c = 0; c < k; ++c)
          magnitude += std::fabs(double{x[static_cast<size_t>(i * k + c)]}) *
                       sizes[static_cast<size_t>(r * k + c)];
        actual_part.push_back(y[at]);
        expected_part.push_back(expected[at]);
        allowed.push_back(magnitude * (sum_error(k) + weight_rounding) + 1e-37);
      }
    expect_close(actual_part, expected_part, [&](size_t i) { return allowed[i]; });
  }
};

const std::vector<std::string> kKTypes{"q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
                                       "q4_1", "q5_1", "iq1",  "iq2"};
// Some columns of whole groups.
int64_t k_columns(const std::string& name, int64_t most_groups, Random& random) {
  const int64_t group = parse_weight_format(name).value().group;
  return group * random.between(1, most_groups * 256 / group);
}
const std::vector<std::string> kFormats{"int4-g32", "int4-g64", "int4-g128", "int8",
                                        "int8-g32", "nf4-g64",  "fp8",       "fp8-g64",
                                        "mxfp4",    "q4_0",     "iq4"};

int64_t some_rows(Random& random, int64_t case_index) {
  constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 64};
  return case_index < 13 ? kRows[case_index] : random.between(1, 70);
}

TEST(LinearQuantised, SixteenBitActivationsEqualDequantisingAndMultiplying) {
  Random random(11);
  for_each_isa([&] {
    for (const std::string& name : kFormats)
      for (int64_t i = 0; i < 15; ++i) {
        Operands operands(name, some_rows(random, i), random.between(1, 100),
                          random.between(1, 700), random);
        SCOPED_TRACE(random.trace());
        operands.run({Compute::kF32});
        operands.expect_right({Compute::kF32}, 0);
        if (!bf16_compute_supported()) continue;
        operands.run({Compute::kBF16}, false);
        // NF4's values are rounded to bf16.
        operands.expect_right({Compute::kBF16}, name.starts_with("nf4") ? 0x1p-9 : 0, false);
      }
  });
}

TEST(LinearQuantised, Int8ActivationsEqualTheQuantisedProduct) {
  for_each_isa([] {
    Random random(12);  // the same for each: which values are half way between two steps
    for (const char* name : {"int4-g32", "int4-g64", "int4-g128", "q4_0", "int8", "int8-g64"})
      for (int64_t i = 0; i < 15; ++i) {
        Operands operands(name, some_rows(random, i), random.between(1, 100),
                          random.between(1, 700), random);
        SCOPED_TRACE(random.trace());
        const QuantisedOptions options{Compute::kF32, ActivationFormat::kInt8};
        operands.run(options);
        // A value half way between two steps may be rounded to either: one step of one column.
        operands.expect_right(options, 0.5 / 127 / static_cast<double>(operands.k) * 12 + 1e-5);
      }
  });
}

TEST(LinearQuantised, KTypesEqualDequantisingAndMultiplying) {
  for_each_isa([] {
    Random random(31);  // the same for each: which values are half way between two steps
    for (const std::string& name : kKTypes)
      for (int64_t i = 0; i < 16; ++i) {
        Operands operands(name, i == 15 ? kMostPreparedRows + 9 : some_rows(random, i),
                          random.between(1, 100), k_columns(name, 6, random), random);
        if (i % 5 == 4)  // sums of products as large as they get
          std::fill(operands.x.begin(), operands.x.end(), i % 2 == 0 ? 1.0f : -1.0f);
        SCOPED_TRACE(random.trace());
        operands.run({Compute::kF32});
        operands.expect_right({Compute::kF32}, 0);
        if (i < 15) {  // of more rows some value is half way between two steps
          const QuantisedOptions int8{Compute::kF32, ActivationFormat::kInt8};
          operands.run(int8, i % 2 == 0);
          // That step meets a weight of up to eight times the mean one.
          operands.expect_right(int8, 0.5 / 127 / static_cast<double>(operands.k) * 48 + 1e-5,
                                i % 2 == 0);
        }
        if (!bf16_compute_supported()) continue;
        operands.run({Compute::kBF16}, false);
        operands.expect_right({Compute::kBF16}, 0, false);
      }
  });
}

// Many rows of int8 x take other loops than few: the same bits, whatever is beside a row.
TEST(LinearQuantised, KTypesGiveARowTheSameBitsAmongMany) {
  Random random(32);
  const QuantisedOptions int8{Compute::kF32, ActivationFormat::kInt8};
  for_each_isa([&] {
    for (const std::string& name : kKTypes)
      for (const int64_t m : {8, 9, 16, 17, 18, 31, 63, 64, 65, 200, int(kMostPreparedRows) + 1}) {
        constexpr int64_t kRows[] = {1, 15, 16, 17, 33, 48, 97};
        Operands many(name, m, kRows[random.between(0, 6)], k_columns(name, 9, random), random);
        SCOPED_TRACE(random.trace());
        const bool has_bias = m % 2 == 0;
        many.run(int8, has_bias);
        Operands one = many;
        one.m = 1;
        for (int64_t row = 0; row < m; row += m < 20 ? 1 : 7) {
          one.x.assign(many.x.begin() + row * many.k, many.x.begin() + (row + 1) * many.k);
          one.x.resize(static_cast<size_t>(padded_rows(1) * many.k));
          one.run(int8, has_bias);
          const float* const among = many.y.data() + row * many.ldy();
          for (int64_t i = 0; i < many.ldy(); ++i)
            ASSERT_EQ(among[i], i < many.n ? one.y[static_cast<size_t>(i)] : kUntouched)
                << many.name() << ", row " << row << ", output " << i;
        }
      }
  });
}

TEST(LinearQuantised, Fp8ActivationsEqualTheRoundedProduct) {
  Random random(20);
  for_each_isa([&] {
    for (const char* name : {"fp8", "fp8-g64"})
      for (int64_t i = 0; i < 15; ++i) {
        Operands operands(name, some_rows(random, i), random.between(1, 100),
                          random.between(1, 700), random);
        // Rows of very small and very large values, and one of zeros.
        for (int64_t row = 0; row < operands.m; ++row)
          for (int64_t c = 0; c < operands.k; ++c)
            operands.x[static_cast<size_t>(row * operands.k + c)] *=
                row % 4 == 3 ? 0.0f : std::ldexp(1.0f, static_cast<int>(row % 4 - 1) * 10);
        SCOPED_TRACE(random.trace());
        for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
          if (compute == Compute::kBF16 && !bf16_compute_supported()) continue;
          const QuantisedOptions options{compute, ActivationFormat::kFp8};
          operands.run(options, i % 2 == 0);
          operands.expect_right(options, 0, i % 2 == 0);
        }
      }
  });
}

// What does not multiply 8-bit activations does as if none were asked for.
TEST(LinearQuantised, OthersMeetInputsOf16Bits) {
  using enum ActivationFormat;
  const std::pair<const char*, ActivationFormat> cases[] = {
      {"iq4", kInt8}, {"mxfp4", kInt8}, {"nf4-g64", kInt8}, {"fp8", kInt8},
      {"int4", kFp8}, {"q4_0", kFp8},   {"q4_k", kFp8},     {"iq4", kFp8}};
  Random random(31);
  for_each_isa([&] {
    for (const auto& [name, asked] : cases)
      for (const Compute compute : {Compute::kF32, Compute::kBF16})
        for (const int64_t m : {1, 20}) {
          if (compute == Compute::kBF16 && !bf16_compute_supported()) continue;
          Operands operands(name, m, 24, 256, random);
          operands.run({compute, asked, asked == kInt8 ? 6.0f : 0.0f});
          const std::vector<float> y = operands.y;
          operands.run({compute, k16Bit});
          EXPECT_EQ(y, operands.y) << operands.name();
        }
  });
}

// With the identity for weights what comes out are the rounded inputs, to the bit.
TEST(LinearQuantised, Fp8ActivationsAreRoundedAsTheFormulaSays) {
  constexpr int64_t kSize = 48;
  Random random(21);
  for_each_isa([&] {
    Operands operands("fp8", 40, kSize, kSize, random);
    std::vector<float> identity(kSize * kSize);
    for (size_t i = 0; i < kSize; ++i) identity[i * kSize + i] = 448;  // the largest: scale 1
    for (int64_t row = 0; row < kSize; row += 16)
      ASSERT_TRUE(quantise_panel(operands.format, {}, identity.data() + row * kSize, kSize, 16,
                                 kSize,
                                 operands.w.data() + row * operands.format.row_bytes(kSize)));
    for (size_t i = 0; i < 40 * kSize; ++i)
      operands.x[i] = std::ldexp(operands.x[i], static_cast<int>(i % 23) - 11);
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      if (compute == Compute::kBF16 && !bf16_compute_supported()) continue;
      operands.run({compute, ActivationFormat::kFp8}, false);
      for (int64_t row = 0; row < 40; ++row) {
        const float* x = operands.x.data() + row * kSize;
        float largest = 0;
        for (int64_t i = 0; i < kSize; ++i) largest = std::max(largest, std::fabs(x[i]));
        const float scale = e4m3_row_scale(largest);
        ASSERT_LE(largest / scale, 448);
        ASSERT_GT(largest / scale, 224);
        for (int64_t i = 0; i < kSize; ++i)
          ASSERT_EQ(operands.y[static_cast<size_t>(row * operands.ldy() + i)],
                    448 * scale * e4m3_to_f32(f32_to_e4m3(x[i] / scale)))
              << row << " " << i;
      }
    }
  });
}

TEST(LinearQuantised, Fp8ActivationsShowWhatIsNoNumber) {
  Random random(22);
  for_each_isa([&] {
    for (const float broken :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      Operands operands("fp8", 3, 20, 77, random);
      operands.x[77 + 76] = broken;
      operands.run(
          {bf16_compute_supported() ? Compute::kBF16 : Compute::kF32, ActivationFormat::kFp8});
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t i = 0; i < 20; ++i)
          ASSERT_EQ(std::isfinite(operands.y[static_cast<size_t>(row * operands.ldy() + i)]),
                    row != 1);
    }
  });
}

TEST(LinearQuantised, PowersOfTwoForFp8Rows) {
  EXPECT_EQ(e4m3_row_scale(448), 1);
  EXPECT_EQ(e4m3_row_scale(448.01f), 2);
  EXPECT_EQ(e4m3_row_scale(224), 0.5);
  EXPECT_EQ(e4m3_row_scale(0), 0x1p-117f);
  EXPECT_EQ(e4m3_row_scale(1e-44f), 0x1p-117f);
  EXPECT_LE(std::numeric_limits<float>::max() / e4m3_row_scale(std::numeric_limits<float>::max()),
            448);
  EXPECT_TRUE(std::isnan(e4m3_row_scale(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(e4m3_row_scale(std::numeric_limits<float>::quiet_NaN())));
}

// Matrices with one input take what the first of them made of it: the same bits.
TEST(LinearQuantised, InputsAreKeptForTheNextMatrix) {
  Random random(19);
  for_each_isa([&] {
    for (const char* name :
         {"int4-g64", "int8", "int4-g32", "q4_0", "fp8", "q4_k", "q6_k", "q5_1", "iq2"})
      for (const int64_t m : {1, 4, 7, 40, 100, int(kMostPreparedRows) + 5})
        for (const QuantisedOptions& options :
             {QuantisedOptions{Compute::kF32, ActivationFormat::kInt8},
              QuantisedOptions{Compute::kF32, ActivationFormat::kInt8, 2.5f},
              QuantisedOptions{Compute::kF32, ActivationFormat::kFp8},
              QuantisedOptions{Compute::kBF16, ActivationFormat::kFp8},
              QuantisedOptions{Compute::kBF16}, QuantisedOptions{Compute::kF32}}) {
          const WeightFormat format = parse_weight_format(name).value();
          const int64_t k = format.is_k() ? 512 : 200;
          if (options.activations == ActivationFormat::kInt8 && !takes_int8_activations(format))
            continue;
          if (options.activations == ActivationFormat::kFp8 && !takes_fp8_activations(format))
            continue;
          if (options.compute == Compute::kBF16 && !bf16_compute_supported()) continue;
          const Operands first(name, m, 40, k, random);
          Operands second(name, m, 33, k, random);
          second.x = first.x;
          second.rounded = first.rounded;
          SCOPED_TRACE(second.name());
          second.run(options);
          const auto expected = second.y;
          second.y.assign(second.y.size(), kUntouched);
          std::vector<std::byte> scratch(
              static_cast<size_t>(quantised_scratch_bytes(first.format, m, k, options)));
          std::vector<float> other(static_cast<size_t>(m * 40));
          linear_quantised(first.activations(), first.w.data(), first.format, 40, nullptr,
                           other.data(), 40, options, scratch);
          linear_quantised(second.activations(), second.w.data(), second.format, 33,
                           second.bias.data(), second.y.data(), second.ldy(), options, scratch,
                           true);
          ASSERT_EQ(second.y, expected);
        }
  });
}

// Rows made one by one, in any order, by a norm or alone: the same bits as those of the product.
TEST(LinearQuantised, RowsArePreparedByWhoWritesThem) {
  Random random(23);
  for_each_isa([&] {
    for (const char* name : {"int4-g64", "int8", "int4-g32", "q4_0", "int8-g128"})
      for (const int64_t m : {1, 5, 64, int(kMostPreparedRows)}) {
        const QuantisedOptions options{Compute::kF32, ActivationFormat::kInt8};
        Operands operands(name, m, 33, 200, random);
        SCOPED_TRACE(operands.name());
        const std::vector<float> gain = random.normal(200);
        const std::vector<float> hidden = operands.x;
        for (const bool is_rms : {true, false}) {
          const auto norm = [&](const RowPreparer* preparer, int64_t first, int64_t rows) {
            const float* from = hidden.data() + first * 200;
            float* to = operands.x.data() + first * 200;
            if (is_rms)
              rms_norm(from, gain.data(), 1e-5f, to, rows, 200, {preparer, first});
            else
              layer_norm(from, gain.data(), nullptr, 1e-5f, to, rows, 200, {preparer, first});
          };
          norm(nullptr, 0, m);
          operands.run(options);
          const auto expected = operands.y;
          operands.x.assign(operands.x.size(), -1.0f);
          operands.y.assign(operands.y.size(), kUntouched);
          std::vector<std::byte> scratch(
              static_cast<size_t>(quantised_scratch_bytes(operands.format, m, 200, options)));
          ASSERT_TRUE(RowPreparer::is_for(operands.format, m, options));
          const RowPreparer preparer(operands.activations(), operands.format, options, scratch);
          norm(&preparer, m / 2, m - m / 2);  // two pieces, the later first
          norm(&preparer, 0, m / 2);
          linear_quantised(operands.activations(), operands.w.data(), operands.format, operands.n,
                           operands.bias.data(), operands.y.data(), operands.ldy(), options,
                           scratch, true);
          ASSERT_EQ(operands.y, expected);
        }
      }
  });
  const WeightFormat int8 = *parse_weight_format("int8");
  EXPECT_FALSE(
      RowPreparer::is_for(int8, kMostPreparedRows + 1, {Compute::kF32, ActivationFormat::kInt8}));
  EXPECT_FALSE(RowPreparer::is_for(int8, 5, {Compute::kF32, ActivationFormat::kInt8, 6.0f}));
  EXPECT_FALSE(RowPreparer::is_for(int8, 5, {Compute::kBF16}));
  EXPECT_FALSE(RowPreparer::is_for(*parse_weight_format("nf4"), 5,
                                   {Compute::kF32, ActivationFormat::kInt8}));
}

// Imported codes may be any byte; those made here leave 0 out.
TEST(LinearQuantised, Int8TakesEveryCode) {
  for_each_isa([] {
    Random random(17);
    for (const int64_t m : {1, 5, 20})
      for (const ActivationFormat activations :
           {ActivationFormat::k16Bit, ActivationFormat::kInt8}) {
        Operands operands("int8-g32", m, 32, 96, random);
        for (int64_t panel = 0; panel < 2; ++panel)
          for (int64_t group = 0; group < 3; ++group) {
            std::vector<uint8_t> codes(16 * 32);
            for (uint8_t& code : codes)
              code = static_cast<uint8_t>(random.engine()() % 3 == 0 ? random.engine()() % 2 * 255
                                                                     : random.engine()());
            const std::vector<float> scales(16, 0.001f), zeros(16, 128.0f);
            pack_group(operands.format, 96, group, codes.data(), scales.data(), zeros.data(),
                       operands.w.data() + panel * operands.format.panel_bytes(96));
          }
        QuantisedOptions options;
        options.activations = activations;
        operands.run(options);
        operands.expect_right(options, 0);
      }
  });
}

TEST(LinearQuantised, LargeShapesOnAllThreads) {
  Random random(13);
  for (const char* name : {"int4-g64", "int8", "nf4-g64", "fp8", "mxfp4", "q4_0", "iq4"})
    for (const int64_t m : {1, 8, 37, 520}) {
      Operands operands(name, m, 641, 1030, random);
      SCOPED_TRACE(random.trace());
      operands.run({bf16_compute_supported() ? Compute::kBF16 : Compute::kF32});
      operands.expect_right({bf16_compute_supported() ? Compute::kBF16 : Compute::kF32},
                            std::string(name).starts_with("nf4") ? 0x1p-9 : 0);
    }
}

// Rows of x that are as long as these are arranged and multiplied in parts.
TEST(LinearQuantised, ManyLongRowsGoInParts) {
  Random random(15);
  for_each_isa([&] {
    for (const char* name : {"int4-g128", "int8", "nf4-g64", "mxfp4", "q4_0", "iq4"}) {
      Operands operands(name, 120, 35, 25000, random);
      SCOPED_TRACE(random.trace());
      operands.run({Compute::kF32});
      operands.expect_right({Compute::kF32}, 0);
      if (!bf16_compute_supported()) continue;
      operands.run({Compute::kBF16});
      operands.expect_right({Compute::kBF16}, std::string(name).starts_with("nf4") ? 0x1p-9 : 0);
    }
  });
}

// Codes are converted where they lie in their words, and x makes up for it: exactly, small or
// large.
TEST(LinearQuantised, SmallAndLargeInputsKeepTheirPrecision) {
  Random random(24);
  for_each_isa([&] {
    for (const char* name : {"int4-g32", "q4_0", "int8-g32"})
      for (const float size : {1e-28f, 1e28f})
        for (const int64_t m : {1, 3, 60}) {
          Operands operands(name, m, 20, 128, random);
          for (float& value : operands.x) value *= size;
          for (float& value : operands.bias) value *= size;
          SCOPED_TRACE(random.trace());
          operands.run({Compute::kF32});
          operands.expect_right({Compute::kF32}, 0);
        }
  });
}

// LLM.int8(): with six outlier columns of sixty the int8 product is far off, and right with them
// apart.
TEST(LinearQuantised, OutlierColumnsAreMultipliedApart) {
  Random random(14);
  for_each_isa([&] {
    for (const int64_t m : {1, 7, 20}) {
      Operands operands("int8", m, 48, 480, random);
      for (int64_t i = 0; i < m; ++i)
        for (const int64_t c : {3, 70, 71, 200, 333, 479})
          operands.x[static_cast<size_t>(i * 480 + c)] = 60.0f;
      QuantisedOptions exact{Compute::kF32};
      std::vector<float> expected(operands.y.size());
      reference::linear_quantised(operands.activations(), operands.w.data(), operands.format,
                                  operands.n, operands.bias.data(), expected.data(), operands.ldy(),
                                  exact);
      const auto error = [&](float threshold) {
        QuantisedOptions options{Compute::kF32, ActivationFormat::kInt8};
        options.outlier_threshold = threshold;
        operands.run(options);
        double off = 0, size = 0;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t r = 0; r < operands.n; ++r) {
            const auto at = static_cast<size_t>(i * operands.ldy() + r);
            off += std::fabs(double{operands.y[at]} - expected[at]);
            size += std::fabs(double{expected[at]});
          }
        return off / size;
      };
      EXPECT_LT(error(6), error(0) / 4);
      EXPECT_LT(error(6), 0.01);
    }
  });
}

TEST(LinearQuantised, SaysWhichFormatsTakeWhat) {
  EXPECT_TRUE(takes_fp8_activations(*parse_weight_format("fp8")));
  EXPECT_FALSE(takes_fp8_activations(*parse_weight_format("int8")));
  EXPECT_TRUE(takes_int8_activations(*parse_weight_format("int4")));
  EXPECT_TRUE(takes_int8_activations(*parse_weight_format("int8")));
  EXPECT_FALSE(takes_int8_activations(*parse_weight_format("nf4")));
  EXPECT_FALSE(takes_int8_activations(*parse_weight_format("fp8")));
}

}  // namespace
}  // namespace sluice::kernels
