// Products of int8 activations on the device against the reference.
#include "kernels/cuda/int8_linear.h"

#include <array>
#include <limits>

#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/quantise.h"
#include "kernels/quantised_linear.h"
#include "tests/kernels/cuda/int8_copy.h"
#include "tests/kernels/cuda/split_memory.h"
#include "tests/rounds.h"

namespace sluice::cuda {
namespace {
using kernels::Random;
namespace reference = kernels::reference;

const char* const kFormats[] = {"int4-g32", "int4-g64", "int4-g128", "q4_0",
                                "int8",     "int8-g32", "int8-g64",  "int8-g128"};

std::vector<std::byte> quantised(const WeightFormat& format, const std::vector<float>& w, int64_t n,
                                 int64_t k) {
  std::vector<std::byte> panels(static_cast<size_t>(format.bytes(n, k)), std::byte{0x77});
  for (int64_t row = 0; row < n; row += WeightFormat::kPanelRows)
    reference::quantise_panel(
        format, w.data() + row * k, k, std::min(WeightFormat::kPanelRows, n - row), k,
        panels.data() + row / WeightFormat::kPanelRows * format.panel_bytes(k));
  return panels;
}

struct Operands {
  Operands(const char* name, int64_t m_, int64_t n_, int64_t k_, uint32_t seed)
      : format(*parse_weight_format(name)), m(m_), n(n_), k(k_) {
    Random random(seed);
    x = random.normal(m * k);
    bias = random.normal(n);
    panels = quantised(format, random.normal(n * k), n, k);
  }

  // y [m, n + 3] on the device.
  std::vector<float> multiply(bool has_bias, int multiprocessors) const {
    const int64_t ldy = n + 3;
    DeviceArray<float> dx(x), db(bias);
    DeviceArray<float> y(std::vector<float>(static_cast<size_t>(m * ldy), kUntouched));
    DeviceArray<std::byte> dw(panels);
    const Int8Copy copy(format, m, k);
    copy_rows_for_products(dx.data(), {m, k, k}, {{}, copy.rows()}, nullptr);
    const Int8LinearPlan plan = plan_linear_int8(format, m, n, k, {multiprocessors});
    const SplitMemory split(plan.workspace_floats, multiprocessors);
    linear_int8(copy.rows(), m, k, dw.data(), format, n, has_bias ? db.data() : nullptr, y.data(),
                ldy, plan, split.space(), nullptr);
    split.expect_zeros();
    const auto out = y.values();
    for (int64_t token = 0; token < m; ++token)  // what lies between rows stays
      for (int64_t row = n; row < ldy; ++row)
        EXPECT_EQ(out[static_cast<size_t>(token * ldy + row)], kUntouched) << token << " " << row;
    return out;
  }

  static constexpr float kUntouched = -777;
  WeightFormat format;
  int64_t m, n, k;
  std::vector<float> x, bias;
  std::vector<std::byte> panels;
};

// Integer sums are exact: what is left are the roundings of the groups' f32 sums.
void expect_as_reference(const char* name, int64_t m, int64_t n, int64_t k, int multiprocessors,
                         uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " " + name + " m " + std::to_string(m) + " n " +
               std::to_string(n) + " k " + std::to_string(k));
  const Operands operands(name, m, n, k, seed);
  const bool has_bias = seed % 2 != 0;
  const auto got = operands.multiply(has_bias, multiprocessors);
  std::vector<float> expected(static_cast<size_t>(m * n));
  kernels::QuantisedOptions options;
  options.activations = kernels::ActivationFormat::kInt8;
  reference::linear_quantised({operands.x.data(), nullptr, m, k, k}, operands.panels.data(),
                              operands.format, n, has_bias ? operands.bias.data() : nullptr,
                              expected.data(), n, options);
  // Of a group: scales up to 3 of x and W, codes and zeros up to 15 of int4.
  const int64_t groups = operands.format.groups(k);
  const double group = static_cast<double>(operands.format.group_columns(k));
  const double allowed =
      16 * kernels::sum_error(groups) * std::sqrt(static_cast<double>(groups)) * group + 1e-6;
  for (int64_t token = 0; token < m; ++token)
    for (int64_t row = 0; row < n; ++row)
      ASSERT_NEAR(got[static_cast<size_t>(token * (n + 3) + row)],
                  expected[static_cast<size_t>(token * n + row)], allowed)
          << "token " << token << " row " << row;
}

TEST(CudaInt8Linear, EveryFormatAndNumberOfRows) {
  uint32_t seed = 1;
  for (const char* name : kFormats)
    for (const int64_t m : {1, 8, 9, 17, 64, 65}) expect_as_reference(name, m, 35, 192, 1, seed++);
}

TEST(CudaInt8Linear, RandomShapes) {
  for (uint32_t seed = 100; seed < 100 + rounds(40u); ++seed) {
    Random random(seed);
    expect_as_reference(kFormats[random.between(0, 6)], random.between(1, 150),
                        random.between(1, 200), random.between(1, 700),
                        static_cast<int>(random.between(1, 8)), seed);
  }
}

TEST(CudaInt8Linear, LongRowsAreSplit) {
  EXPECT_GT(plan_linear_int8(*parse_weight_format("int4-g64"), 3, 40, 3000, {8}).splits, 3);
  for (const char* name : {"int4-g64", "int8", "int8-g128"}) {
    expect_as_reference(name, 3, 40, 3000, 8, 7);
    for (const int64_t k : {6144, 5000}) expect_as_reference(name, 5, 40, k, 8, 9);
    // More tokens and rows than a block has: several blocks come last, each of its own.
    for (const int64_t m : {12, 70, 130}) expect_as_reference(name, m, 150, 2100, 12, 11);
  }
  EXPECT_GT(plan_linear_int8(*parse_weight_format("int8"), 130, 150, 2100, {12}).splits, 1);
}

TEST(CudaInt8Linear, AnyPlanFitsTheWorkspace) {
  Random random(3);
  for (int i = 0; i < 5000; ++i) {
    const WeightFormat format = *parse_weight_format(kFormats[random.between(0, 6)]);
    const int64_t k = random.between(1, 40000);
    const auto multiprocessors = static_cast<int>(random.between(1, 200));
    const Int8LinearPlan plan = plan_linear_int8(format, random.between(1, 600),
                                                 random.between(1, 50000), k, {multiprocessors});
    ASSERT_EQ(plan.split_columns % 128, 0);
    ASSERT_GE(plan.splits * plan.split_columns, format.padded_columns(k));
    ASSERT_LT((plan.splits - 1) * plan.split_columns, format.padded_columns(k));
    ASSERT_LE(plan.workspace_floats, linear_int8_workspace_floats({multiprocessors}));
    if (plan.splits > 1) {
      ASSERT_LE(plan.workspace_floats / (plan.splits * 128 * 64),
                split_counters({multiprocessors}));
    }
  }
}

TEST(CudaInt8Linear, QuantisesRowsAsTheFormulaSays) {
  for (const char* name : kFormats)
    for (const int64_t cols : {1, 31, 64, 200, 4099}) {
      Random random(static_cast<uint32_t>(cols));
      SCOPED_TRACE(std::string(name) + " columns " + std::to_string(cols));
      auto x = random.normal(5 * cols, 10);
      std::fill(x.begin() + cols, x.begin() + 2 * cols, 0.0f);
      x[static_cast<size_t>(2 * cols)] = 1e30f;
      DeviceArray<float> device(x);
      const Int8Copy copy(*parse_weight_format(name), 5, cols);
      copy_rows_for_products(device.data(), {5, cols, cols}, {{}, copy.rows()}, nullptr);
      copy.expect_of(x);
    }
}

// Exact sums, the same scales in the same order: the same bits.
TEST(CudaInt8Linear, DenseProductsGiveTheSame) {
  const DeviceMemory dense_workspace(DenseLinear::workspace_bytes());
  DenseLinear dense(dense_workspace.data());
  uint32_t seed = 50;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{5, 16, 64}, {300, 50, 130}, {257, 33, 700}}) {
    const Operands operands("int8", m, n, k, ++seed);
    const WeightFormat& format = operands.format;
    const bool has_bias = seed % 2 != 0;
    EXPECT_EQ(is_dense_codes(format, m, k), m >= kFewestDenseInt8Rows);
    const int64_t ldy = n + 3, padded = (n + 15) / 16 * 16;
    DeviceArray<float> dx(operands.x), db(operands.bias);
    DeviceArray<float> y(std::vector<float>(static_cast<size_t>(m * ldy), Operands::kUntouched));
    DeviceArray<std::byte> dw(operands.panels);
    const Int8Copy copy(format, m, k);
    const Int8Rows rows = copy.rows();
    copy_rows_for_products(dx.data(), {m, k, k}, {{}, rows}, nullptr);
    DeviceArray<int8_t> codes(static_cast<size_t>(padded * rows.columns));
    DeviceArray<int32_t> products(static_cast<size_t>(m * padded));
    unpack_codes(dw.data(), format, n, k, codes.data(), nullptr);
    dense.run_int8(rows.codes, m, rows.columns, codes.data(), padded, products.data(), nullptr);
    scale_products(products.data(), rows.token_scales(), m, k, dw.data(), format, n,
                   has_bias ? db.data() : nullptr, y.data(), ldy, nullptr);
    const auto expected = operands.multiply(has_bias, 1);
    const auto got = y.values();
    for (int64_t token = 0; token < m; ++token)
      for (int64_t row = 0; row < ldy; ++row) {  // what lies between rows stays
        const auto i = static_cast<size_t>(token * ldy + row);
        ASSERT_EQ(got[i], row < n ? expected[i] : Operands::kUntouched)
            << "token " << token << " row " << row;
      }
  }
  EXPECT_FALSE(is_dense_codes(*parse_weight_format("int8-g64"), 1000, 700));
  EXPECT_FALSE(is_dense_codes(*parse_weight_format("int4-g64"), 1000, 64));
}

// A number that is none is not rounded to one.
TEST(CudaInt8Linear, NanAndInfinityShow) {
  for (const char* name : kFormats)
    for (const float broken :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(name);
      Operands operands(name, 3, 20, 300, 5);
      operands.x[300 + 7] = broken;
      const auto y = operands.multiply(true, 1);
      for (int64_t token = 0; token < 3; ++token)
        for (int64_t row = 0; row < 20; ++row)
          ASSERT_EQ(std::isfinite(y[static_cast<size_t>(token * 23 + row)]), token != 1)
              << token << " " << row;
    }
}

}  // namespace
}  // namespace sluice::cuda
