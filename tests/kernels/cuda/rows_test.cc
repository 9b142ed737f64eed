// Row operators on the device against the reference.
#include "kernels/cuda/rows.h"

#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using kernels::Random;
namespace reference = kernels::reference;

const RowsShape kShapes[] = {{1, 1, 1},     {1, 7, 7},     {3, 64, 64},    {2, 255, 300},
                             {5, 257, 257}, {33, 96, 128}, {2, 4099, 4100}};

// The rows of `shape` without what lies between them.
std::vector<float> dense(const std::vector<float>& x, const RowsShape& shape) {
  std::vector<float> out;
  for (int64_t row = 0; row < shape.rows; ++row)
    out.insert(out.end(), x.begin() + row * shape.stride,
               x.begin() + row * shape.stride + shape.cols);
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, double relative,
                 double absolute) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], relative * std::fabs(expected[i]) + absolute) << i;
}

// The rounded copy holds y's values, and zeros up to its stride.
void expect_rounded(const std::vector<uint16_t>& copy, int64_t stride, DType type,
                    const std::vector<float>& y, const RowsShape& shape) {
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t col = 0; col < stride; ++col) {
      const uint16_t bits = copy[static_cast<size_t>(row * stride + col)];
      if (col >= shape.cols) {
        ASSERT_EQ(bits, 0);
        continue;
      }
      const float value = y[static_cast<size_t>(row * shape.cols + col)];
      ASSERT_EQ(bits, type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value));
    }
}

TEST(CudaRows, NormsAgreeWithTheReference) {
  for (const RowsShape& shape : kShapes)
    for (const bool is_rms : {true, false})
      for (const DType type : {DType::kF16, DType::kBF16}) {
        Random random(static_cast<uint32_t>(shape.rows * 10000 + shape.cols));
        SCOPED_TRACE(random.trace());
        const auto x = random.normal(shape.rows * shape.stride, 3);
        const auto gain = random.normal(shape.cols);
        const auto bias = random.normal(shape.cols);
        const int64_t stride = (shape.cols + 63) / 64 * 64;
        DeviceArray<float> in(x), g(gain), b(bias), out(x.size());
        DeviceArray<uint16_t> copy(static_cast<size_t>(shape.rows * stride));
        const Rows16 rounded{copy.data(), stride, type};
        const auto rows = dense(x, shape);
        std::vector<float> expected(rows.size());
        if (is_rms) {
          rms_norm(in.data(), g.data(), 1e-5f, out.data(), shape, rounded, nullptr);
          reference::rms_norm(rows.data(), gain.data(), 1e-5f, expected.data(), shape.rows,
                              shape.cols);
        } else {
          layer_norm(in.data(), g.data(), b.data(), 1e-5f, out.data(), shape, rounded, nullptr);
          reference::layer_norm(rows.data(), gain.data(), bias.data(), 1e-5f, expected.data(),
                                shape.rows, shape.cols);
        }
        const auto got = dense(out.values(), shape);
        expect_near(got, expected, 1e-5, is_rms ? 1e-30 : 3e-5);
        expect_rounded(copy.values(), stride, type, got, shape);
      }
}

TEST(CudaRows, NormsWorkInPlaceAndWithoutGain) {
  const RowsShape shape{4, 100, 100};
  Random random(3);
  const auto x = random.normal(400);
  DeviceArray<float> in(x), out(x.size());
  layer_norm(in.data(), nullptr, nullptr, 1e-5f, out.data(), shape, {}, nullptr);
  layer_norm(in.data(), nullptr, nullptr, 1e-5f, in.data(), shape, {}, nullptr);
  EXPECT_EQ(in.values(), out.values());
  std::vector<float> expected(x.size());
  reference::layer_norm(x.data(), nullptr, nullptr, 1e-5f, expected.data(), 4, 100);
  expect_near(out.values(), expected, 1e-5, 1e-5);
}

TEST(CudaRows, RoundsAndAdds) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols));
    const auto x = random.normal(shape.rows * shape.stride, 100);
    const auto bias = random.normal(shape.cols);
    const int64_t stride = (shape.cols + 31) / 32 * 32;
    DeviceArray<float> in(x), b(bias), y(x);
    DeviceArray<uint16_t> copy(static_cast<size_t>(shape.rows * stride));
    round_rows(in.data(), shape, {copy.data(), stride, DType::kBF16}, nullptr);
    expect_rounded(copy.values(), stride, DType::kBF16, dense(x, shape), shape);
    add_inplace(y.data(), in.data(), shape.rows * shape.stride, nullptr);
    add_bias(y.data(), b.data(), shape, nullptr);
    auto expected = dense(x, shape);
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = expected[i] + expected[i] + bias[i % static_cast<size_t>(shape.cols)];
    EXPECT_EQ(dense(y.values(), shape), expected);
  }
}

TEST(CudaRows, ActivationsAgreeWithTheReference) {
  Random random(11);
  auto x = random.normal(3001, 4);
  x[0] = 0;
  x[1] = -90;
  x[2] = 90;
  const auto n = static_cast<int64_t>(x.size());
  const std::pair<RowActivation, void (*)(float*, int64_t)> all[] = {
      {RowActivation::kRelu, reference::relu},
      {RowActivation::kGeluErf, reference::gelu_erf},
      {RowActivation::kGeluTanh, reference::gelu_tanh},
      {RowActivation::kSilu, reference::silu}};
  for (const auto& [activation, plainest] : all) {
    DeviceArray<float> y(x);
    auto expected = x;
    activate(activation, y.data(), n, nullptr);
    plainest(expected.data(), n);
    expect_near(y.values(), expected, 1e-5, 2e-6);
  }
}

TEST(CudaRows, GatesRows) {
  for (const RowsShape& shape : kShapes) {
    Random random(static_cast<uint32_t>(shape.cols + 1));
    const auto gate = random.normal(shape.rows * shape.stride, 3);
    const auto up = random.normal(shape.rows * shape.stride);
    DeviceArray<float> g(gate), u(up);
    silu_mul(g.data(), u.data(), g.data(), shape, nullptr);
    auto expected = gate;
    reference::silu_mul(gate.data(), shape.stride, up.data(), shape.stride, expected.data(),
                        shape.stride, shape.rows, shape.cols);
    expect_near(g.values(), expected, 1e-5, 1e-6);
  }
}

TEST(CudaRows, RotatesAsTheReference) {
  struct Case {
    int heads, head_dim, rotary_dim;
  };
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
                 nullptr);
    reference::rope_inplace(x.data(), shape.rows, shape.stride, c.heads, c.head_dim, c.rotary_dim,
                            positions.data(), frequencies.data(), 1.5f);
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

}  // namespace
}  // namespace sluice::cuda
