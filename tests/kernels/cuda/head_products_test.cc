// Products of heads with their own rows on the device against the reference.
#include "kernels/cuda/head_products.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace sluice::cuda {
namespace {
using kernels::HeadOperands;
using kernels::HeadRows;
using kernels::MatrixRun;
using kernels::Random;
namespace reference = kernels::reference;

struct Case {
  HeadRows of;
  int64_t cols;
  int64_t rows;
};
const Case kCases[] = {{{1, 1, 0, 1}, 1, 1},       {{3, 12, 0, 5}, 11, 7},
                       {{3, 12, 5, 7}, 11, 7},     {{2, 80, 0, 33}, 300, 9},
                       {{2, 300, 10, 270}, 33, 3}, {{4, 16, 8, 8}, 128, 17}};

// Runs [0, cut) and [cut, all) of the matrix, on the device.
void expect_as_reference(const Case& one, DType type, uint32_t seed) {
  Random random(seed);
  SCOPED_TRACE(random.trace());
  const auto& [of, cols, rows] = one;
  const int64_t all = of.heads * of.height;
  auto values = random.normal(all * cols);
  values.resize(static_cast<size_t>((all + 16) * cols), NAN);  // nobody may use what is behind
  const auto w = kernels::stored_as(type, values);
  DeviceArray<std::byte> there(w);
  const int64_t cut = random.between(0, all);
  const auto run_of = [&](const std::byte* from, int64_t begin, int64_t count) {
    return MatrixRun{from + begin * cols * dtype_bytes(type), type, begin, count, cols};
  };
  const int64_t wide = cols + 2, narrow = of.count + 3;
  const auto wide_values = random.normal(rows * of.heads * wide);
  const auto narrow_values = random.normal(rows * of.heads * narrow);
  const auto operands = [&](const float* x, int64_t x_head, float* y, int64_t y_head) {
    return HeadOperands{rows, x, of.heads * x_head, x_head, y, of.heads * y_head, y_head};
  };
  {
    DeviceArray<float> x(wide_values), y(narrow_values);
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, all}})
      head_products(of, run_of(there.data(), begin, end - begin),
                    operands(x.data(), wide, y.data(), narrow), nullptr);
    std::vector<float> expected = narrow_values;
    reference::head_products(of, run_of(w.data(), 0, all),
                             operands(wide_values.data(), wide, expected.data(), narrow));
    expect_near(y.values(), expected, 1e-5, 1e-5 * std::sqrt(static_cast<double>(cols)));
  }
  DeviceArray<float> x(narrow_values), y(wide_values);
  for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, all}})
    add_transposed_head_products(of, run_of(there.data(), begin, end - begin),
                                 operands(x.data(), narrow, y.data(), wide), nullptr);
  std::vector<float> expected = wide_values;
  reference::add_transposed_head_products(
      of, run_of(w.data(), 0, all), operands(narrow_values.data(), narrow, expected.data(), wide));
  expect_near(y.values(), expected, 1e-5, 1e-5 * std::sqrt(static_cast<double>(of.count)));
}

TEST(CudaHeadProducts, AgreeWithTheReference) {
  uint32_t seed = 1;
  for (const Case& one : kCases)
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      expect_as_reference(one, type, seed++);
}

TEST(CudaHeadProducts, BeginWithWhatIsMovedAndZeros) {
  Random random(3);
  constexpr int64_t kHeads = 3, kMoved = 2, kCols = 5, kRows = 4;
  const auto x = random.normal(kRows * kHeads * 4);
  std::vector<float> expected(static_cast<size_t>(kRows * (kHeads * 7 + 2)), 9.0f);
  DeviceArray<float> from(x), to(expected);
  const auto operands = [&](const float* in, float* out) {
    return HeadOperands{kRows, in + 1, kHeads * 4, 4, out, kHeads * 7 + 2, 7};
  };
  begin_head_products(kHeads, kMoved, kCols, operands(from.data(), to.data()), nullptr);
  kernels::begin_head_products(kHeads, kMoved, kCols, operands(x.data(), expected.data()));
  EXPECT_EQ(to.values(), expected);
}

}  // namespace
}  // namespace sluice::cuda
