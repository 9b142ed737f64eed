// Products of heads with their own rows of a matrix against the reference, whatever runs of rows it
// comes in.
#include "kernels/head_products.h"

#include <algorithm>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

// heads, height, first, count, cols, rows of x
struct Case {
  HeadRows of;
  int64_t cols;
  int64_t rows;
};
const Case kCases[] = {
    {{1, 1, 0, 1}, 1, 1},        {{1, 2, 0, 1}, 3, 2},         {{3, 12, 0, 5}, 11, 7},
    {{3, 12, 5, 7}, 11, 7},      {{4, 16, 0, 8}, 16, 1},       {{4, 16, 8, 8}, 16, 5},
    {{2, 40, 7, 33}, 129, 3},    {{5, 24, 0, 16}, 95, 130},    {{5, 24, 16, 8}, 64, 67},
    {{16, 256, 0, 128}, 512, 1}, {{16, 256, 128, 128}, 512, 4}};
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// The matrix in runs of rows that begin and end anywhere.
std::vector<MatrixRun> runs_of(const HeadRows& of, DType type, int64_t cols,
                               const std::vector<std::byte>& bytes, Random& random) {
  std::vector<MatrixRun> runs;
  const int64_t all = of.heads * of.height;
  for (int64_t begin = 0; begin < all;) {
    const int64_t count = std::min(all - begin, random.between(1, all));
    runs.push_back(
        {bytes.data() + (1 + begin * cols) * dtype_bytes(type), type, begin, count, cols});
    begin += count;
  }
  return runs;
}

void expect_as_reference(const Case& one, DType type, uint32_t seed) {
  Random random(seed);
  SCOPED_TRACE(random.trace());
  const auto& [of, cols, rows] = one;
  // At an address that only an element has.
  const int64_t skip = dtype_bytes(type);
  const auto w = stored_as(type, random.normal(of.heads * of.height * cols), skip);
  const MatrixRun whole{w.data() + skip, type, 0, of.heads * of.height, cols};
  const std::vector<MatrixRun> runs = runs_of(of, type, cols, w, random);
  // Heads and rows lie further apart than they are wide.
  const int64_t wide = cols + 2, narrow = of.count + 3;
  const auto wide_values = random.normal(rows * of.heads * wide + 5, 1);
  const auto narrow_values = random.normal(rows * of.heads * narrow + 5, 1);
  {
    std::vector<float> y = narrow_values, expected = narrow_values;
    const auto operands = [&](std::vector<float>& to) {
      return HeadOperands{rows,      wide_values.data(), of.heads * wide, wide,
                          to.data(), of.heads * narrow,  narrow};
    };
    for (const MatrixRun& run : runs) head_products(of, run, operands(y));
    reference::head_products(of, whole, operands(expected));
    expect_close(y, expected,
                 [&](size_t) { return 8 * sum_error(cols) * std::sqrt(double(cols)); });
  }
  std::vector<float> y = wide_values, expected = wide_values;
  const auto operands = [&](std::vector<float>& to) {
    return HeadOperands{
        rows, narrow_values.data(), of.heads * narrow, narrow, to.data(), of.heads * wide, wide};
  };
  for (const MatrixRun& run : runs) add_transposed_head_products(of, run, operands(y));
  reference::add_transposed_head_products(of, whole, operands(expected));
  expect_close(y, expected, [&](size_t) {
    return 8 * sum_error(of.count + 1) * std::sqrt(double(of.count + 1));
  });
}

TEST(HeadProducts, AgreeWithTheReferenceOnEveryInstructionSet) {
  uint32_t seed = 1;
  for_each_isa([&] {
    for (const Case& one : kCases)
      for (const DType type : kTypes) expect_as_reference(one, type, seed++);
  });
}

TEST(HeadProducts, BeginWithWhatIsMovedAndZeros) {
  Random random(3);
  constexpr int64_t kHeads = 3, kMoved = 2, kCols = 5, kRows = 4;
  const auto x = random.normal(kRows * (kHeads * 4 + 1));
  std::vector<float> y(static_cast<size_t>(kRows * (kHeads * 7 + 2)), 9.0f);
  begin_head_products(kHeads, kMoved, kCols,
                      {kRows, x.data() + 1, kHeads * 4 + 1, 4, y.data(), kHeads * 7 + 2, 7});
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t col = 0; col < kHeads * 7 + 2; ++col) {
      const int64_t head = col / 7, at = col % 7;
      const float expected = head >= kHeads ? 9.0f
                             : at < kMoved  ? x[static_cast<size_t>(row * 13 + 1 + head * 4 + at)]
                                            : 0.0f;
      EXPECT_EQ(y[static_cast<size_t>(row * 23 + col)], expected) << row << " " << col;
    }
}

}  // namespace
}  // namespace sluice::kernels
