// Row operators on the device against the reference.
#include "kernels/cuda/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/rope.h"
#include "kernels/route.h"
#include "tests/kernels/cuda/int8_copy.h"
#include "tests/kernels/cuda/row_testing.h"

namespace sluice::cuda {
namespace {
using kernels::Random;
namespace reference = kernels::reference;

TEST(CudaRows, RoundsAndAdds) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols));
    const auto x = random.normal(shape.rows * shape.stride, 100);
    const auto bias = random.normal(shape.cols);
    const int64_t stride = (shape.cols + 31) / 32 * 32;
    DeviceArray<float> in(x), b(bias), y(x);
    DeviceArray<uint16_t> copy(static_cast<size_t>(shape.rows * stride));
    copy_rows_for_products(in.data(), shape, {{copy.data(), stride, DType::kBF16}, {}}, nullptr);
    expect_rounded(copy.values(), stride, DType::kBF16, dense(x, shape), shape);
    // All but the last; what lies between rows gets no bias.
    add_inplace(y.data(), in.data(), shape.rows * shape.stride - 1, nullptr);
    add_bias(y.data(), b.data(), shape, nullptr);
    auto expected = x;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i + 1 < expected.size()) expected[i] += x[i];
      const auto col = static_cast<int64_t>(i) % shape.stride;
      if (col < shape.cols) expected[i] += bias[static_cast<size_t>(col)];
    }
    EXPECT_EQ(y.values(), expected);
  }
}

// Rows of any magnitude in f16, over a power of two each that is undone behind the product.
TEST(CudaRows, ScalesRowsIntoTheRangeOfF16) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols + 1));
    auto x = random.normal(shape.rows * shape.stride, 1);
    std::vector<float> wanted(static_cast<size_t>(shape.rows));
    for (int64_t row = 0; row < shape.rows; ++row) {
      float* const values = x.data() + row * shape.stride;
      const float largest =
          std::array{3.0f, 32768.0f, 32769.0f, 65536.0f, 1e5f, 3e38f}[static_cast<size_t>(row % 6)];
      for (int64_t col = 0; col < shape.cols; ++col)
        values[col] = std::clamp(values[col], -4.0f, 4.0f) / 4 * largest;
      values[row % shape.cols] = row % 2 == 0 ? largest : -largest;
      float scale = 1;
      while (largest / scale > 32768) scale *= 2;
      wanted[static_cast<size_t>(row)] = row % 6 == 3 ? 4 : scale;  // 65536 is no less than 2^16
    }
    const int64_t stride = (shape.cols + 31) / 32 * 32;
    DeviceArray<float> in(x), scales(static_cast<size_t>(shape.rows));
    DeviceArray<uint16_t> copy(static_cast<size_t>(shape.rows * stride));
    copy_scaled_rows(in.data(), shape, {copy.data(), stride, DType::kF16}, scales.data(), nullptr);
    EXPECT_EQ(scales.values(), wanted);
    auto scaled = x;
    for (int64_t row = 0; row < shape.rows; ++row)
      for (int64_t col = 0; col < shape.cols; ++col)
        scaled[static_cast<size_t>(row * shape.stride + col)] /= wanted[static_cast<size_t>(row)];
    expect_rounded(copy.values(), stride, DType::kF16, dense(scaled, shape), shape);
    // With a bias that is not scaled; what lies between rows is not touched.
    const auto bias = random.normal(shape.cols);
    DeviceArray<float> b(bias), y(scaled);
    unscale_products(y.data(), shape, scales.data(), b.data(), nullptr);
    const auto got = y.values();
    for (size_t i = 0; i < got.size(); ++i) {
      const auto row = static_cast<size_t>(static_cast<int64_t>(i) / shape.stride);
      const auto col = static_cast<int64_t>(i) % shape.stride;
      const float added = col < shape.cols ? bias[static_cast<size_t>(col)] : 0.0f;
      const float scale = col < shape.cols ? wanted[row] : 1.0f;
      ASSERT_EQ(got[i], scale == 1.0f ? scaled[i] : (scaled[i] - added) * scale + added);
    }
  }
}

// An infinity and a NaN stay what they are.
TEST(CudaRows, ScalesNoRowThatHasAnInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  DeviceArray<float> in(std::vector<float>{1e6f, infinity, 2, 1e6f, std::nanf(""), 2}), scales(2);
  DeviceArray<uint16_t> copy(64);
  copy_scaled_rows(in.data(), {2, 3, 3}, {copy.data(), 32, DType::kF16}, scales.data(), nullptr);
  EXPECT_EQ(scales.values(), (std::vector<float>{1, 1}));
  EXPECT_EQ(f16_to_f32(copy.values()[1]), infinity);
  EXPECT_TRUE(std::isnan(f16_to_f32(copy.values()[33])));
}

TEST(CudaRows, ActivationsAgreeWithTheReference) {
  Random random(11);
  auto x = random.normal(3001, 4);
  x[0] = 0;
  x[1] = -90;
  x[2] = 90;
  const auto n = static_cast<int64_t>(x.size());
  for (const Activation activation : kActivations) {
    DeviceArray<float> y(x);
    auto expected = x;
    activate(activation, y.data(), {1, n, n}, {}, nullptr);
    reference::activate(activation, expected.data(), n);
    expect_near(y.values(), expected, 1e-5, 2e-6);
  }
}

TEST(CudaRows, TakesHeads) {
  Random random(5);
  const kernels::TakenHeads taken{3, 5, 2, 1};
  const auto x = random.normal(7 * 33);
  DeviceArray<float> in(x), y(std::vector<float>(7 * 16, 4.0f));
  std::vector<float> expected(7 * 16, 4.0f);
  take_heads(in.data(), 33, y.data(), {7, 15, 16}, taken, nullptr);
  reference::take_heads(x.data(), 33, expected.data(), 16, 7, taken);
  EXPECT_EQ(y.values(), expected);
}

TEST(CudaRows, ScalesCapsAndRegroups) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols + 3));
    const auto x = random.normal(shape.rows * shape.stride, 30);
    std::vector<int32_t> positions;
    for (int64_t row = 0; row < shape.rows; ++row)
      positions.push_back(static_cast<int32_t>(random.between(0, 5000)));
    DeviceArray<float> y(x);
    DeviceArray<int32_t> at(positions);
    scale_rows(y.data(), shape, 0.7f, {}, nullptr);
    scale_rows(y.data(), shape, 0.1f, {at.data(), 0, 100}, nullptr);
    scale_rows(y.data(), shape, 0.3f, {at.data(), 1, 5}, nullptr);
    auto expected = x;
    for (int64_t row = 0; row < shape.rows; ++row)
      reference::scale_inplace(expected.data() + row * shape.stride, 0.7f, shape.cols);
    reference::scale_by_position(expected.data(), shape.stride, positions.data(), 100, 0.1f,
                                 shape.rows, shape.cols);
    for (int32_t& position : positions) ++position;
    reference::scale_by_position(expected.data(), shape.stride, positions.data(), 5, 0.3f,
                                 shape.rows, shape.cols);
    expect_near(y.values(), expected, 1e-5, 1e-6);
    const auto gains = random.normal(shape.cols);
    DeviceArray<float> scaled(x), by(gains);
    scale_columns(scaled.data(), by.data(), shape, nullptr);
    expected = x;
    for (int64_t row = 0; row < shape.rows; ++row)
      reference::scale_columns(expected.data() + row * shape.stride, gains.data(), 1, shape.cols);
    expect_near(scaled.values(), expected, 0, 0);
    for (const float most : {0.0f, 10.0f, 1000.0f}) {
      DeviceArray<float> clamped(x);
      clamp_rows(clamped.data(), most, shape, nullptr);
      expected = x;
      reference::clamp_rows(expected.data(), shape.stride, most, shape.rows, shape.cols);
      expect_near(clamped.values(), expected, 0, 0);
    }
    DeviceArray<float> capped(x);
    soft_cap(capped.data(), 20.0f, std::ssize(x), nullptr);
    expected = x;
    reference::soft_cap(expected.data(), 20.0f, std::ssize(x));
    expect_near(capped.values(), expected, 1e-5, 1e-5);
  }
  for (const kernels::HeadGroups& heads :
       {kernels::HeadGroups{1, 7, 3}, kernels::HeadGroups{5, 1, 8},
        kernels::HeadGroups{3, 2, 64}}) {
    const int64_t cols = heads.groups * (heads.queries + 2) * heads.head_dim;
    Random random(static_cast<uint32_t>(cols));
    const auto x = random.normal(9 * cols);
    DeviceArray<float> from(x), to(x.size());
    regroup_heads(from.data(), to.data(), {9, cols, cols}, heads, nullptr);
    std::vector<float> expected(x.size());
    reference::regroup_heads(x.data(), cols, expected.data(), cols, 9, heads);
    EXPECT_EQ(to.values(), expected);
  }
}

void expect_gated(Activation activation, uint32_t seed) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols) + seed);
    const auto gate = random.normal(shape.rows * shape.stride, 3);
    const auto up = random.normal(shape.rows * shape.stride);
    DeviceArray<float> g(gate), u(up);
    gated(activation, g.data(), u.data(), g.data(), shape, {}, nullptr);
    auto expected = gate;
    reference::gated(activation, gate.data(), shape.stride, up.data(), shape.stride,
                     expected.data(), shape.stride, shape.rows, shape.cols);
    expect_near(g.values(), expected, 1e-5, 1e-6);
  }
}

TEST(CudaRows, GatesRowsWithEveryActivation) {
  uint32_t seed = 0;
  for (const Activation activation : kActivations) expect_gated(activation, ++seed);
}

// Some of both are beyond the limit on either side, alphas gpt-oss's and others.
TEST(CudaRows, ClampsWhatItGates) {
  for (const RowsShape& shape : kShapes)
    for (const bool has_biases : {false, true})
      for (const auto& [limit, alpha] : {std::pair{7.0f, 1.702f}, {0.5f, -3.0f}}) {
        Random random(static_cast<uint32_t>(shape.cols) + 3);
        const auto gate = random.normal(shape.rows * shape.stride, 6);
        const auto up = random.normal(shape.rows * shape.stride, 6);
        const auto biases = random.normal(2 * shape.cols, 3);
        DeviceArray<float> g(gate), u(up), b(biases);
        clamped_gate({limit, alpha, has_biases ? b.data() : nullptr}, g.data(), u.data(), g.data(),
                     shape, nullptr);
        auto expected = gate;
        reference::clamped_gate({limit, alpha, has_biases ? biases.data() : nullptr}, gate.data(),
                                shape.stride, up.data(), shape.stride, expected.data(),
                                shape.stride, shape.rows, shape.cols);
        expect_near(g.values(), expected, 1e-5, 1e-5);
        EXPECT_EQ(u.values(), up);
      }
}

// Rows that several blocks write, with copies wider than the rows.
TEST(CudaRows, ActivationsMakeTheCopiesOfProducts) {
  for (const RowsShape& shape : kShapes)
    for (const char* name : {"int4-g32", "int4-g64", "q4_0", "int8-g128"}) {
      Random random(static_cast<uint32_t>(shape.cols));
      SCOPED_TRACE(random.trace() + " " + name + " columns " + std::to_string(shape.cols));
      const auto gate = random.normal(shape.rows * shape.stride, 3);
      DeviceArray<float> g(gate), u(gate), y(gate);
      const int64_t stride = (shape.cols + 127) / 128 * 128;
      DeviceArray<uint16_t> narrow(static_cast<size_t>(shape.rows * stride));
      const Int8Copy int8(*parse_weight_format(name), shape.rows, shape.cols);
      const RowCopies copies{{narrow.data(), stride, DType::kF16}, int8.rows()};
      ASSERT_TRUE(can_quantise_slices(copies.int8));
      gated(Activation::kSilu, g.data(), u.data(), g.data(), shape, copies, nullptr);
      auto written = dense(g.values(), shape);
      expect_rounded(narrow.values(), stride, DType::kF16, written, shape);
      int8.expect_of(written);
      activate(Activation::kRelu, y.data(), shape, copies, nullptr);
      written = dense(y.values(), shape);
      expect_rounded(narrow.values(), stride, DType::kF16, written, shape);
      int8.expect_of(written);
    }
  const Int8Copy whole(*parse_weight_format("int8"), 1, 200);
  EXPECT_FALSE(can_quantise_slices(whole.rows()));
}

TEST(CudaRows, RotatesAsTheReference) {
  struct Case {
    int heads, head_dim, rotary_dim;
  };
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs})
    for (const Case& c : {Case{1, 2, 2}, Case{3, 64, 64}, Case{8, 128, 128}, Case{5, 80, 32}}) {
      Random random(static_cast<uint32_t>(c.head_dim));
      const RowsShape shape{7, c.heads * c.head_dim, c.heads * c.head_dim + 5};
      auto x = random.normal(shape.rows * shape.stride);
      std::vector<int32_t> positions{0, 1, 2, 77, 1000, 4095, 8191};
      std::vector<float> frequencies;
      for (int i = 0; i < c.rotary_dim / 2; ++i)
        frequencies.push_back(
            std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.rotary_dim)));
      DeviceArray<float> device(x), inverse(frequencies);
      DeviceArray<int32_t> at(positions);
      rope_inplace(device.data(), shape, c.heads, c.rotary_dim, at.data(), inverse.data(), 1.5f,
                   layout, nullptr);
      reference::rope_inplace(x.data(), shape.rows, shape.stride, c.heads, c.head_dim, c.rotary_dim,
                              positions.data(), frequencies.data(), 1.5f, layout);
      expect_near(device.values(), x, 1e-5, 2e-5);
    }
}

TEST(CudaRows, GathersRowsOfEveryType) {
  Random random(17);
  constexpr int64_t kCols = 77;
  const auto table = random.normal(50 * kCols);
  const std::vector<int32_t> ids{0, 3, 47, 3, 46};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    DeviceArray<std::byte> rows(kernels::stored_as(type, table));
    DeviceArray<int32_t> which(ids);
    DeviceArray<float> out(ids.size() * kCols);
    gather_rows(rows.data(), type, kCols, which.data(), 2, static_cast<int64_t>(ids.size()),
                out.data(), nullptr);
    const auto values = kernels::rounded_to(type, table);
    std::vector<float> expected;
    for (const int32_t id : ids)
      expected.insert(expected.end(), values.begin() + (id + 2) * kCols,
                      values.begin() + (id + 3) * kCols);
    EXPECT_EQ(out.values(), expected);
  }
}

TEST(CudaRows, AddsWeightedRows) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols));
    const int64_t stride = shape.cols + 3, all = shape.rows + 4;
    const auto x = random.normal(shape.rows * shape.stride), weights = random.normal(2 * all);
    std::vector<int32_t> ids(static_cast<size_t>(all));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random.engine());
    DeviceArray<float> in(x), by(weights);
    DeviceArray<int32_t> which(ids);
    for (const bool has_ids : {false, true}) {
      auto expected = random.normal(all * stride);
      DeviceArray<float> y(expected);
      add_weighted_rows(in.data(), shape, has_ids ? which.data() : nullptr, by.data(), 2, y.data(),
                        stride, nullptr);
      reference::add_weighted_rows(x.data(), shape.stride, has_ids ? ids.data() : nullptr,
                                   weights.data(), 2, expected.data(), stride, shape.rows,
                                   shape.cols);
      expect_near(y.values(), expected, 1e-6, 1e-6);
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
