// Norms on the device against the reference, with the residual before and the copies after.
#include "kernels/cuda/norm.h"

#include "kernels/norm.h"
#include "tests/kernels/cuda/int8_copy.h"
#include "tests/kernels/cuda/row_testing.h"

namespace sluice::cuda {
namespace {
using kernels::Random;
namespace reference = kernels::reference;

TEST(CudaNorm, AgreesWithTheReference) {
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
        NormRows norm{in.data(), nullptr, out.data(), shape, {{copy.data(), stride, type}, {}}};
        const auto rows = dense(x, shape);
        std::vector<float> expected(rows.size());
        if (is_rms) {
          rms_norm(norm, g.data(), 1e-5f, nullptr);
          reference::rms_norm(rows.data(), gain.data(), 1e-5f, expected.data(), shape.rows,
                              shape.cols);
        } else {
          layer_norm(norm, g.data(), b.data(), 1e-5f, nullptr);
          reference::layer_norm(rows.data(), gain.data(), bias.data(), 1e-5f, expected.data(),
                                shape.rows, shape.cols);
        }
        const auto got = dense(out.values(), shape);
        expect_near(got, expected, 1e-5, is_rms ? 1e-30 : 3e-5);
        expect_rounded(copy.values(), stride, type, got, shape);
        EXPECT_EQ(in.values(), x);
      }
}

// Where the sum of squares is no more than eps, and where it is nothing.
TEST(CudaNorm, TinyRowsStaySmall) {
  const RowsShape shape{3, 70, 70};
  Random random(5);
  auto x = random.normal(210, 1e-3f);
  std::fill(x.begin() + 140, x.end(), 0.0f);
  const auto gain = random.normal(70);
  for (const bool is_rms : {true, false}) {
    DeviceArray<float> in(x), out(x.size()), g(gain);
    std::vector<float> expected(x.size());
    if (is_rms) {
      rms_norm({in.data(), nullptr, out.data(), shape, {}}, g.data(), 1e-5f, nullptr);
      reference::rms_norm(x.data(), gain.data(), 1e-5f, expected.data(), 3, 70);
    } else {
      layer_norm({in.data(), nullptr, out.data(), shape, {}}, g.data(), nullptr, 1e-5f, nullptr);
      reference::layer_norm(x.data(), gain.data(), nullptr, 1e-5f, expected.data(), 3, 70);
    }
    expect_near(out.values(), expected, 1e-5, 1e-6);
    EXPECT_EQ(out.values().back(), 0.0f);
  }
}

TEST(CudaNorm, WorksInPlaceAndWithoutGain) {
  const RowsShape shape{4, 100, 100};
  Random random(3);
  const auto x = random.normal(400);
  DeviceArray<float> in(x), out(x.size());
  layer_norm({in.data(), nullptr, out.data(), shape, {}}, nullptr, nullptr, 1e-5f, nullptr);
  layer_norm({in.data(), nullptr, in.data(), shape, {}}, nullptr, nullptr, 1e-5f, nullptr);
  EXPECT_EQ(in.values(), out.values());
  std::vector<float> expected(x.size());
  reference::layer_norm(x.data(), nullptr, nullptr, 1e-5f, expected.data(), 4, 100);
  expect_near(out.values(), expected, 1e-5, 1e-5);
}

// The same bits as adding and then normalising, also where the result replaces what was added.
TEST(CudaNorm, AddsTheResidualFirst) {
  for (const RowsShape& shape : kShapes)
    for (const bool is_rms : {true, false}) {
      Random random(static_cast<uint32_t>(shape.rows * 100 + shape.cols));
      const auto x = random.normal(shape.rows * shape.stride, 3);
      const auto addend = random.normal(shape.rows * shape.stride);
      auto sum = x;
      for (int64_t row = 0; row < shape.rows; ++row)
        for (int64_t col = 0; col < shape.cols; ++col)
          sum[static_cast<size_t>(row * shape.stride + col)] +=
              addend[static_cast<size_t>(row * shape.stride + col)];
      DeviceArray<float> plain(sum), expected(x.size()), hidden(x), both(addend);
      const auto run = [&](const NormRows& rows) {
        if (is_rms)
          rms_norm(rows, nullptr, 1e-5f, nullptr);
        else
          layer_norm(rows, nullptr, nullptr, 1e-5f, nullptr);
      };
      run({plain.data(), nullptr, expected.data(), shape, {}});
      run({hidden.data(), both.data(), both.data(), shape, {}});
      EXPECT_EQ(hidden.values(), sum);
      EXPECT_EQ(dense(both.values(), shape), dense(expected.values(), shape));
    }
}

TEST(CudaNorm, QuantisesWhatItWrites) {
  for (const RowsShape& shape : kShapes)
    for (const char* name : {"int4-g32", "int4-g64", "int4-g128", "q4_0", "int8", "int8-g32"}) {
      Random random(static_cast<uint32_t>(shape.rows + shape.cols));
      SCOPED_TRACE(random.trace() + " " + name + " columns " + std::to_string(shape.cols));
      const auto x = random.normal(shape.rows * shape.stride, 3);
      DeviceArray<float> in(x), out(x.size());
      const Int8Copy copy(*parse_weight_format(name), shape.rows, shape.cols);
      rms_norm({in.data(), nullptr, out.data(), shape, {{}, copy.rows()}}, nullptr, 1e-5f, nullptr);
      copy.expect_of(dense(out.values(), shape));
    }
}

}  // namespace
}  // namespace sluice::cuda
