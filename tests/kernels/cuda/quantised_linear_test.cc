// Quantised products and dequantisation on the device against the reference.
#include "kernels/cuda/quantised_linear.h"

#include "kernels/k_layout.h"
#include "kernels/quantise.h"
#include "kernels/quantised_linear.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/split_memory.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/rounds.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::cuda {
namespace {
using kernels::Random;
namespace reference = kernels::reference;

const char* const kFormats[] = {"int4-g32", "int4-g64", "int4-g128", "int8",    "int8-g64",
                                "nf4-g64",  "nf4-g128", "fp8",       "fp8-g32", "nf4-g32",
                                "mxfp4",    "q4_0",     "iq4"};
constexpr int64_t kLastFormat = std::ssize(kFormats) - 1;
// What is kept of GGUF files.
const char* const kKFormats[] = {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
                                 "q4_1", "q5_1", "iq1",  "iq2"};

// Any codes and small scales, with numbers for the large ones.
std::vector<std::byte> random_k_panels(const WeightFormat& format, int64_t n, int64_t k,
                                       Random& random) {
  const kernels::KLayout layout = kernels::k_layout(format.encoding);
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(n, k)));
  for (std::byte& byte : panels) byte = static_cast<std::byte>(random.between(0, 255));
  for (int64_t at = 0; at < std::ssize(panels); at += layout.bytes()) {
    std::byte* line = panels.data() + at + layout.scale_words * kernels::kQuantLine;
    for (int64_t row = 0; row < 16; ++row) {
      const float scale = 0.0001f * static_cast<float>(random.between(-99, 99));
      if (!layout.has_minima) {
        std::memcpy(line + row * 4, &scale, 4);
        continue;
      }
      const uint16_t halves[] = {f32_to_f16(scale),
                                 f32_to_f16(0.0001f * static_cast<float>(random.between(-99, 99)))};
      std::memcpy(line + row * 2, &halves[0], 2);
      std::memcpy(line + 32 + row * 2, &halves[1], 2);
    }
  }
  return panels;
}

std::vector<std::byte> quantised(const WeightFormat& format, const std::vector<float>& w, int64_t n,
                                 int64_t k) {
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(n, k)), std::byte{0x77});
  for (int64_t row = 0; row < n; row += WeightFormat::kPanelRows)
    reference::quantise_panel(
        format, w.data() + row * k, k, std::min(WeightFormat::kPanelRows, n - row), k,
        panels.data() + row / WeightFormat::kPanelRows * format.panel_bytes(k));
  return panels;
}

std::vector<DType> types() {
  if (first_device().has_bf16) return {DType::kF16, DType::kBF16};
  return {DType::kF16};
}

// One product; NF4's values are rounded to 16 bits, the rest is exact but for the f32 sums.
void expect_as_reference(const char* name, DType type, int64_t m, int64_t n, int64_t k,
                         int multiprocessors, uint32_t seed) {
  const WeightFormat format = *parse_weight_format(name);
  Random random(seed);
  SCOPED_TRACE(random.trace() + " " + name + " " + std::string(dtype_name(type)) + " m " +
               std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k));
  const auto w = random.normal(n * k);
  const auto x = kernels::rounded_to(type, random.normal(m * k));
  const auto bias = random.normal(n);
  const auto panels =
      format.is_k() ? random_k_panels(format, n, k, random) : quantised(format, w, n, k);
  const int64_t stride = (format.padded_columns(k) + 7) / 8 * 8;
  const int64_t ldy = n + 3;
  constexpr float kUntouched = -777;
  DeviceArray<float> dx(x), db(bias);
  DeviceArray<float> y(std::vector<float>(static_cast<size_t>(m * ldy), kUntouched));
  DeviceArray<uint16_t> narrow(static_cast<size_t>(m * stride));
  DeviceArray<std::byte> dw(panels);
  const Rows16 rounded{narrow.data(), stride, type};
  copy_rows_for_products(dx.data(), {m, k, k}, {rounded, {}}, nullptr);
  const LinearPlan plan = plan_linear_quantised(format, m, n, k, {multiprocessors});
  const SplitMemory split(plan.workspace_floats, multiprocessors);
  linear_quantised(rounded, m, k, dw.data(), format, n, seed % 2 ? db.data() : nullptr, y.data(),
                   ldy, plan, split.space(), nullptr);
  split.expect_zeros();
  const auto got = y.values();
  for (int64_t token = 0; token < m; ++token)  // what lies between rows stays
    for (int64_t row = n; row < ldy; ++row)
      ASSERT_EQ(got[static_cast<size_t>(token * ldy + row)], kUntouched) << token << " " << row;
  const double value_error =
      format.encoding == Encoding::kNf4 ? (type == DType::kBF16 ? 0x1p-9 : 0x1p-12) : 0.0;
  // Codes and minima count apart, as int4's zeros do: both may be larger than what they make.
  const kernels::KLayout layout = kernels::k_layout(format.encoding);
  const double largest = format.is_k() && layout.has_minima ? 0.02 * 63 : 0;
  double worst = -1;
  for (int64_t row = 0; row < n; ++row)
    for (int64_t token = 0; token < m; ++token) {
      double exact = seed % 2 ? double{bias[static_cast<size_t>(row)]} : 0;
      double magnitude = std::fabs(exact);
      for (int64_t col = 0; col < k; ++col) {
        const double value = double{reference::quantised_value(format, panels.data(), k, row, col)};
        const double term = value * double{x[static_cast<size_t>(token * k + col)]};
        exact += term;
        magnitude += std::fabs(term);
      }
      // int4 adds q x and takes zero x away again: both count. Tensor cores cut off: one more bit.
      const double allowed = magnitude * (value_error + 4 * kernels::sum_error(k)) * 2 +
                             (format.encoding == Encoding::kInt4 ? 16 * kernels::sum_error(k) : 0) *
                                 static_cast<double>(k) / 8 +
                             largest * 4 * kernels::sum_error(k) * static_cast<double>(k) + 1e-6;
      const double error = std::fabs(double{got[static_cast<size_t>(token * ldy + row)]} - exact);
      ASSERT_LE(error, allowed) << "token " << token << " row " << row << " expected " << exact;
      worst = std::max(worst, error / allowed);
    }
  EXPECT_GE(worst, 0);
}

TEST(CudaQuantisedLinear, EveryFormatAndNumberOfRows) {
  uint32_t seed = 1;
  for (const char* name : kFormats)
    for (const DType type : types())
      for (const int64_t m : {1, 8, 9, 17, 64})
        expect_as_reference(name, type, m, 35, 192, 1, seed++);
}

TEST(CudaQuantisedLinear, KTypesOfEveryNumberOfRows) {
  uint32_t seed = 700;
  for (const char* name : kKFormats)
    for (const DType type : types())
      for (const int64_t m : {1, 7, 8, 9, 33, 64})  // in one split and in two
        expect_as_reference(name, type, m, 35, m % 2 == 1 ? 256 : 512, 1, seed++);
}

TEST(CudaQuantisedLinear, KTypesOfLongRowsAreSplit) {
  EXPECT_GT(plan_linear_quantised(*parse_weight_format("q4_k"), 3, 40, 4096, {8}).splits, 3);
  for (const char* name : {"q4_k", "q6_k", "q5_1", "iq2"})
    for (const int64_t m : {3, 40}) expect_as_reference(name, types().back(), m, 41, 3072, 8, 7);
  for (uint32_t seed = 800; seed < 800 + rounds(20u); ++seed) {
    Random random(seed);
    const char* name = kKFormats[random.between(0, std::ssize(kKFormats) - 1)];
    const int64_t unit = kernels::k_layout(parse_weight_format(name)->encoding).columns;
    expect_as_reference(name, types()[seed % types().size()], random.between(1, 64),
                        random.between(1, 200), unit * random.between(1, 6),
                        static_cast<int>(random.between(1, 8)), seed);
  }
}

TEST(CudaQuantisedLinear, RandomShapes) {
  for (uint32_t seed = 100; seed < 100 + rounds(40u); ++seed) {
    Random random(seed);
    const auto all = types();
    expect_as_reference(kFormats[random.between(0, kLastFormat)],
                        all[static_cast<size_t>(random.between(0, 1)) % all.size()],
                        random.between(1, kFewestDenseRows - 1), random.between(1, 200),
                        random.between(1, 700), static_cast<int>(random.between(1, 8)), seed);
  }
}

TEST(CudaQuantisedLinear, LongRowsAreSplit) {
  EXPECT_GT(plan_linear_quantised(*parse_weight_format("int4-g64"), 3, 40, 3000, {8}).splits, 3);
  for (const char* name : {"int4-g64", "int8", "nf4-g128", "fp8", "mxfp4", "q4_0", "iq4"})
    expect_as_reference(name, DType::kF16, 3, 41, 3000, 8, 7);
  // Six splits and more, of one scale a row.
  EXPECT_GE(plan_linear_quantised(*parse_weight_format("int8"), 5, 40, 6144, {8}).splits, 6);
  for (const char* name : {"int8", "fp8", "int4-g128"})
    for (const int64_t k : {6144, 5000}) expect_as_reference(name, types().back(), 5, 40, k, 8, 9);
}

// Every code beside scales from f32's smallest to its largest, which x keeps near one; what is no
// number says so.
TEST(CudaQuantisedLinear, EveryCodeAndScaleOfMxfp4) {
  const WeightFormat format = *parse_weight_format("mxfp4");
  constexpr int64_t kRows = 256, kCols = 32;
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(kRows, kCols)));
  for (int64_t row = 0; row < kRows; ++row) {
    std::byte* panel = panels.data() + row / 16 * format.panel_bytes(kCols);
    for (int64_t line = 0; line < 4; ++line)  // all codes of a row twice, in any order
      for (int64_t i = 0; i < 4; ++i)
        panel[line * 64 + row % 16 * 4 + i] =
            static_cast<std::byte>(((line * 4 + i) * 0x11 + (row * 0x30)) & 0xff);
    panel[256 + row % 16] = static_cast<std::byte>(row);
  }
  DeviceArray<std::byte> w(panels);
  for (const DType type : types()) {
    for (const int64_t m : {1, 12}) {
      // Each token takes one column: a product is a value, but for what f32 holds.
      std::vector<float> x(static_cast<size_t>(m * kCols));
      for (int64_t token = 0; token < m; ++token)
        x[static_cast<size_t>(token * kCols + token * 2 + 1)] = 0.5f;
      DeviceArray<float> dx(x), y(static_cast<size_t>(m * kRows));
      DeviceArray<uint16_t> narrow(static_cast<size_t>(m * kCols));
      const Rows16 rounded{narrow.data(), kCols, type};
      copy_rows_for_products(dx.data(), {m, kCols, kCols}, {rounded, {}}, nullptr);
      const LinearPlan plan = plan_linear_quantised(format, m, kRows, kCols, {1});
      const SplitMemory split(plan.workspace_floats, 1);
      linear_quantised(rounded, m, kCols, w.data(), format, kRows, nullptr, y.data(), kRows, plan,
                       split.space(), nullptr);
      const auto got = y.values();
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t token = 0; token < m; ++token) {
          const float value =
              reference::quantised_value(format, panels.data(), kCols, row, token * 2 + 1);
          const float product = got[static_cast<size_t>(token * kRows + row)];
          if (std::isinf(value)) continue;  // what is f32 first is beyond it
          if (row == 255)
            EXPECT_TRUE(std::isnan(product)) << token;
          else
            EXPECT_EQ(product, 0.5f * value) << row << " " << token;
        }
    }
    DeviceArray<uint16_t> out(static_cast<size_t>(kRows * kCols));
    dequantise(w.data(), format, kRows, kCols, type, out.data(), kCols, nullptr);
    const auto got = out.values();
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t col = 0; col < kCols; ++col) {
        const float value = reference::quantised_value(format, panels.data(), kCols, row, col);
        const uint16_t bits = got[static_cast<size_t>(row * kCols + col)];
        EXPECT_TRUE(std::isnan(value)
                        ? std::isnan(type == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits))
                        : bits == (type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value)))
            << row << " " << col << " " << value;
      }
  }
}

// The last block adds the sums up in the order of the splits, whoever it is; no other adds one.
TEST(CudaQuantisedLinear, SplitSumsDoNotDependOnWhoComesLast) {
#ifdef SLUICE_CUDA_ON_HOST
  const WeightFormat format = *parse_weight_format("int4-g64");
  for (const int64_t n : {40, 128, 300}) {
    constexpr int64_t kM = 5, kK = 4000;
    const LinearPlan plan = plan_linear_quantised(format, kM, n, kK, {8});
    ASSERT_GT(plan.splits, 2);
    Random random(static_cast<uint32_t>(n));
    DeviceArray<std::byte> w(quantised(format, random.normal(n * kK), n, kK));
    const int64_t stride = (format.padded_columns(kK) + 7) / 8 * 8;
    DeviceArray<float> x(random.normal(kM * kK)), bias(random.normal(n));
    DeviceArray<uint16_t> narrow(static_cast<size_t>(kM * stride));
    const Rows16 rows{narrow.data(), stride, DType::kF16};
    copy_rows_for_products(x.data(), {kM, kK, kK}, {rows, {}}, nullptr);
    std::vector<float> expected;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      host::set_seed(seed);
      SCOPED_TRACE("order of threads " + std::to_string(seed));
      DeviceArray<float> y(static_cast<size_t>(kM * n));
      const SplitMemory split(plan.workspace_floats, 8);
      linear_quantised(rows, kM, kK, w.data(), format, n, bias.data(), y.data(), n, plan,
                       split.space(), nullptr);
      split.expect_zeros();
      if (expected.empty()) expected = y.values();
      EXPECT_EQ(y.values(), expected);
    }
    host::set_seed(0);
  }
#else
  GTEST_SKIP() << "a GPU has its own order";
#endif
}

TEST(CudaQuantisedLinear, ThePlanCoversEveryColumnOnce) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    const WeightFormat format = *parse_weight_format(kFormats[random.between(0, kLastFormat)]);
    const int64_t k = random.between(1, 40000);
    const int processors = static_cast<int>(random.between(1, 200));
    const LinearPlan plan =
        plan_linear_quantised(format, 5, random.between(1, 50000), k, {processors});
    ASSERT_LE(plan.workspace_floats, linear_workspace_floats(5, {processors}));
    if (plan.splits > 1) {
      ASSERT_LE(plan.workspace_floats / (plan.splits * 5 * 128), split_counters({processors}));
    }
    ASSERT_GE(plan.splits, 1);
    ASSERT_EQ(plan.split_columns % 128, 0);
    ASSERT_GE(plan.splits * plan.split_columns, format.padded_columns(k));
    ASSERT_LT((plan.splits - 1) * plan.split_columns, format.padded_columns(k));
  }
}

// Two blocks each fit the 132 multiprocessors of an H200: how many of their places are taken.
TEST(CudaQuantisedLinear, SplitsLeaveFewMultiprocessorsIdle) {
  const WeightFormat format = *parse_weight_format("int4-g64");
  for (const int64_t n : {1024, 4096, 5120, 8192, 11008, 14336, 17920, 28672, 128256}) {
    const int64_t k = 8192;
    const LinearPlan plan = plan_linear_quantised(format, 1, n, k, {132});
    const int64_t blocks = (n + 127) / 128 * plan.splits;
    const int64_t waves = (blocks + 263) / 264;
    EXPECT_GE(blocks * 100, waves * 264 * 75) << n << ": " << blocks << " blocks";
  }
}

TEST(CudaQuantisedLinear, Dequantises) {
  uint32_t seed = 300;
  std::vector<const char*> names(std::begin(kFormats), std::end(kFormats));
  names.insert(names.end(), std::begin(kKFormats), std::end(kKFormats));
  for (const char* name : names)
    for (int round = 0; round < 4; ++round) {
      const DType type = types()[static_cast<size_t>(round) % types().size()];
      const WeightFormat format = *parse_weight_format(name);
      Random random(seed++);
      SCOPED_TRACE(random.trace() + " " + name);
      const int64_t n = random.between(1, 60);
      const int64_t k = random.between(1, 300);
      // Rows that begin at 16 bytes are written by them.
      const int64_t ld = round / 2 == 0 ? (k + 7) / 8 * 8 : k + random.between(0, 9);
      const auto panels = format.is_k() ? random_k_panels(format, n, k, random)
                                        : quantised(format, random.normal(n * k), n, k);
      DeviceArray<std::byte> dw(panels);
      constexpr uint16_t kUntouched = 0xabcd;
      DeviceArray<uint16_t> out(std::vector<uint16_t>(static_cast<size_t>(n * ld), kUntouched));
      dequantise(dw.data(), format, n, k, type, out.data(), ld, nullptr);
      const auto got = out.values();
      for (int64_t row = 0; row < n; ++row)
        for (int64_t col = 0; col < k; ++col) {
          const float value = reference::quantised_value(format, panels.data(), k, row, col);
          const uint16_t bits = got[static_cast<size_t>(row * ld + col)];
          // NF4's values are rounded by whoever wrote them; one step of 16 bits at most.
          const float read = type == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
          ASSERT_NEAR(read, value,
                      std::fabs(value) * (type == DType::kBF16 ? 0x1p-8 : 0x1p-11) +
                          (format.is_k() ? 1e-5 : 1e-7))  // where a minimum takes it all away
              << row << " " << col;
        }
      for (int64_t row = 0; row < n; ++row)  // what lies between rows stays
        for (int64_t col = k; col < ld; ++col)
          ASSERT_EQ(got[static_cast<size_t>(row * ld + col)], kUntouched) << row << " " << col;
    }
}

}  // namespace
}  // namespace sluice::cuda
