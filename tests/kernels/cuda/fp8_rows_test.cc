// Rows rounded to fp8 on the device, and products of their codes, against the plain formulas.
#include "kernels/cuda/fp8_rows.h"

#include <array>
#include <cmath>
#include <limits>

#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/driver.h"
#include "kernels/quantise.h"
#include "kernels/quantised_layout.h"
#include "kernels/quantised_linear.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/rounds.h"

namespace sluice::cuda {
namespace {
using kernels::Random;

const WeightFormat kFormat = *parse_weight_format("fp8");

float scale_of(const float* x, int64_t cols) {
  float largest = 0;
  for (int64_t col = 0; col < cols; ++col) largest = std::max(largest, std::fabs(x[col]));
  return kernels::e4m3_row_scale(largest);
}

// Rows as they come, rows of tiny and of huge values, of zeros, and of what lies between two codes.
std::vector<float> some_rows(Random& random, int64_t rows, int64_t cols) {
  auto x = random.normal(rows * cols);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) {
      float& value = x[static_cast<size_t>(row * cols + col)];
      switch (row % 6) {
        case 1: value *= 1e-37f; break;
        case 2: value *= 1e37f; break;
        case 3: value = 0; break;
        case 4: value = std::ldexp(value, static_cast<int>(random.between(-20, 20))); break;
        case 5: value = 0.5f * static_cast<float>(random.between(-896, 896)); break;
        default: break;
      }
    }
  return x;
}

void expect_rounded(int64_t rows, int64_t cols, DType narrow_type, uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " rows " + std::to_string(rows) + " columns " +
               std::to_string(cols));
  Random random(seed);
  const int64_t ld = cols + 5, narrow_ld = (cols + 127) / 128 * 128;
  const auto values = some_rows(random, rows, cols);
  std::vector<float> x(static_cast<size_t>(rows * ld), 1e30f);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(values.data() + row * cols, cols, x.data() + row * ld);
  const DeviceArray<float> dx(x);
  const DeviceArray<std::byte> memory(static_cast<size_t>(fp8_rows_bytes(kFormat, rows, cols)));
  const DeviceArray<uint16_t> narrow(static_cast<size_t>(rows * narrow_ld));
  const Fp8Rows codes = fp8_rows(kFormat, rows, cols, memory.data());
  const DeviceArray<float> narrow_scales(static_cast<size_t>(rows));
  const bool has_codes = seed % 3 != 0, has_narrow = seed % 3 != 1;
  const bool has_narrow_scales = has_narrow && seed % 4 < 2;
  round_rows_to_fp8(dx.data(), {rows, cols, ld}, has_codes ? codes : Fp8Rows{},
                    has_narrow ? Rows16{narrow.data(), narrow_ld, narrow_type} : Rows16{},
                    has_narrow_scales ? narrow_scales.data() : nullptr, nullptr);
  const auto bytes = memory.values();
  const auto halves = narrow.values();
  const auto row_scales = narrow_scales.values();
  const auto* scales = reinterpret_cast<const float*>(
      bytes.data() + (reinterpret_cast<const std::byte*>(codes.scales) - memory.data()));
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = values.data() + row * cols;
    const float scale = scale_of(from, cols);
    if (has_codes) {
      ASSERT_EQ(scales[row], scale);
    }
    if (has_narrow_scales) {
      ASSERT_EQ(row_scales[static_cast<size_t>(row)], scale);
    }
    for (int64_t at = 0; at < std::max(codes.columns, narrow_ld); ++at) {
      const uint8_t code =
          at < cols ? kernels::f32_to_e4m3(from[at] / scale) : static_cast<uint8_t>(0);
      if (has_codes && at < codes.columns) {
        // Byte 1 of a word has column 2, byte 2 column 1.
        const int64_t place = at / 4 * 4 + kernels::byte_column(static_cast<int>(at % 4));
        ASSERT_EQ(static_cast<uint8_t>(bytes[static_cast<size_t>(row * codes.columns + place)]),
                  code)
            << "row " << row << " column " << at << " of " << (at < cols ? from[at] / scale : 0);
      }
      if (!has_narrow || at >= narrow_ld) continue;
      const float value = (has_narrow_scales ? 1.0f : scale) * e4m3_to_f32(code);
      const uint16_t bits = halves[static_cast<size_t>(row * narrow_ld + at)];
      const uint16_t expected =
          narrow_type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
      if (narrow_type == DType::kBF16) {
        ASSERT_EQ(bf16_to_f32(expected), value) << "exact in bf16";
      } else if (has_narrow_scales) {
        ASSERT_EQ(f16_to_f32(expected), value) << "exact in f16";
      }
      ASSERT_EQ(bits, expected) << row << " " << at;
    }
  }
}

TEST(CudaFp8Rows, RoundsAsTheFormulaSays) {
  uint32_t seed = 1;
  for (const int64_t cols : {1, 3, 4, 31, 64, 200, 4099})
    for (const DType type : {DType::kBF16, DType::kF16})
      for (int i = 0; i < 3; ++i) expect_rounded(7, cols, type, seed++);
}

TEST(CudaFp8Rows, RandomShapes) {
  for (uint32_t seed = 100; seed < 100 + rounds(40u); ++seed) {
    Random random(seed);
    expect_rounded(random.between(1, 20), random.between(1, 900),
                   seed % 2 != 0 ? DType::kBF16 : DType::kF16, seed);
  }
}

// Every value that has a code, its neighbours, and the middles between codes, with a scale of 1.
TEST(CudaFp8Rows, EveryCodeAndTheTiesBetween) {
  std::vector<float> x{448};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code));
    const float high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = 0.5f * (low + high);
    for (const float value :
         {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 500.0f)}) {
      x.push_back(value);
      x.push_back(-value);
    }
  }
  const auto cols = static_cast<int64_t>(x.size());
  const DeviceArray<float> dx(x);
  const DeviceArray<std::byte> memory(static_cast<size_t>(fp8_rows_bytes(kFormat, 1, cols)));
  round_rows_to_fp8(dx.data(), {1, cols, cols}, fp8_rows(kFormat, 1, cols, memory.data()), {},
                    nullptr, nullptr);
  const auto bytes = memory.values();
  for (int64_t at = 0; at < cols; ++at) {
    const int64_t place = at / 4 * 4 + kernels::byte_column(static_cast<int>(at % 4));
    ASSERT_EQ(static_cast<uint8_t>(bytes[static_cast<size_t>(place)]),
              kernels::f32_to_e4m3(x[static_cast<size_t>(at)]))
        << x[static_cast<size_t>(at)];
  }
}

struct Product {
  WeightFormat format = kFormat;
  int64_t m, n, k;
  std::vector<float> x, bias;
  std::vector<std::byte> panels;

  Product(int64_t m_, int64_t n_, int64_t k_, uint32_t seed) : m(m_), n(n_), k(k_) {
    Random random(seed);
    x = random.normal(m * k);
    bias = random.normal(n);
    const auto w = random.normal(n * k);
    panels.resize(static_cast<size_t>(format.bytes(n, k)), std::byte{0x77});
    for (int64_t row = 0; row < n; row += WeightFormat::kPanelRows)
      kernels::reference::quantise_panel(
          format, w.data() + row * k, k, std::min(WeightFormat::kPanelRows, n - row), k,
          panels.data() + row / WeightFormat::kPanelRows * format.panel_bytes(k));
  }

  // y [m, n + 3] on the device.
  std::vector<float> multiply(DenseLinear& dense, bool has_bias) const {
    const int64_t ldy = n + 3, padded = (n + 15) / 16 * 16;
    const DeviceArray<float> dx(x), db(bias), y(static_cast<size_t>(m * ldy));
    const DeviceArray<std::byte> dw(panels);
    const DeviceArray<std::byte> memory(static_cast<size_t>(fp8_rows_bytes(format, m, k)));
    const Fp8Rows rows = fp8_rows(format, m, k, memory.data());
    round_rows_to_fp8(dx.data(), {m, k, k}, rows, {}, nullptr, nullptr);
    const DeviceArray<uint8_t> codes(static_cast<size_t>(padded * rows.columns));
    const DeviceArray<float> products(static_cast<size_t>(m * padded));
    unpack_codes(dw.data(), format, n, k, codes.data(), nullptr);
    dense.run_fp8(rows.codes, m, rows.columns, codes.data(), padded, products.data(), nullptr);
    scale_products(products.data(), rows.token_scales(), m, k, dw.data(), format, n,
                   has_bias ? db.data() : nullptr, y.data(), ldy, nullptr);
    return y.values();
  }
};

TEST(CudaFp8Rows, DenseProductsAgreeWithTheReference) {
  if (!first_device().has_fp8) GTEST_SKIP() << "this GPU multiplies no fp8";
  const DeviceMemory workspace(DenseLinear::workspace_bytes());
  DenseLinear dense(workspace.data());
  uint32_t seed = 50;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 16, 64}, {65, 50, 130}, {300, 33, 700}, {70, 1, 1}}) {
    const Product product(m, n, k, ++seed);
    SCOPED_TRACE("m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k));
    EXPECT_EQ(is_dense_codes(product.format, m, k), m >= kFewestDenseFp8Rows);
    const bool has_bias = seed % 2 != 0;
    const auto got = product.multiply(dense, has_bias);
    std::vector<float> expected(static_cast<size_t>(m * n));
    kernels::QuantisedOptions options;
    options.activations = kernels::ActivationFormat::kFp8;
    kernels::reference::linear_quantised(
        {product.x.data(), nullptr, m, k, k}, product.panels.data(), product.format, n,
        has_bias ? product.bias.data() : nullptr, expected.data(), n, options);
    // Products of normal numbers are about 1; tensor cores may keep 14 bits of sums of fp8.
    const double allowed = 0x1p-13 * 8 * std::sqrt(static_cast<double>(k)) + 1e-6;
    for (int64_t token = 0; token < m; ++token)
      for (int64_t row = 0; row < n; ++row)
        ASSERT_NEAR(got[static_cast<size_t>(token * (n + 3) + row)],
                    expected[static_cast<size_t>(token * n + row)], allowed)
            << "token " << token << " row " << row;
  }
  EXPECT_FALSE(is_dense_codes(*parse_weight_format("fp8-g64"), 1000, 700));
}

TEST(CudaFp8Rows, NanAndInfinityShow) {
  if (!first_device().has_fp8) GTEST_SKIP() << "this GPU multiplies no fp8";
  const DeviceMemory workspace(DenseLinear::workspace_bytes());
  DenseLinear dense(workspace.data());
  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Product product(3, 20, 300, 5);
    product.x[300 + 7] = broken;
    const auto y = product.multiply(dense, true);
    for (int64_t token = 0; token < 3; ++token)
      for (int64_t row = 0; row < 20; ++row)
        ASSERT_EQ(std::isfinite(y[static_cast<size_t>(token * 23 + row)]), token != 1)
            << token << " " << row;
    const DeviceArray<float> dx(product.x);
    const DeviceArray<uint16_t> narrow(3 * 384);
    const DeviceArray<float> narrow_scales(3);
    round_rows_to_fp8(dx.data(), {3, 300, 300}, {}, {narrow.data(), 384, DType::kF16},
                      narrow_scales.data(), nullptr);
    const auto row_scales = narrow_scales.values();
    for (size_t row = 0; row < 3; ++row) ASSERT_EQ(std::isfinite(row_scales[row]), row != 1);
    round_rows_to_fp8(dx.data(), {3, 300, 300}, {}, {narrow.data(), 384, DType::kF16}, nullptr,
                      nullptr);
    const auto halves = narrow.values();
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t col = 0; col < 300; ++col)
        ASSERT_EQ(std::isfinite(f16_to_f32(halves[static_cast<size_t>(row * 384 + col)])),
                  row != 1);
  }
}

}  // namespace
}  // namespace sluice::cuda
