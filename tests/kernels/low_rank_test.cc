// Low-rank changes of rows by several adapters against the reference.
#include "kernels/low_rank.h"

#include <algorithm>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

struct LowRankCase {
  int64_t cols;
  int64_t outputs;
  std::vector<int64_t> ranks;  // of the adapters there are
  std::vector<int64_t> runs;   // rows of each run
};
const LowRankCase kLowRankCases[] = {
    {1, 1, {1}, {1}},
    {3, 5, {2, 1}, {1, 2}},
    {67, 255, {3, 8, 5}, {1, 1, 1, 4}},
    {64, 256, {16}, {65}},
    {129, 257, {7, 33}, {3, 130, 1, 64}},
    {512, 1031, {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
};
constexpr DType kLowRankTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// An adapter's matrices, which lie at an address that only an element has.
struct MadeLowRank {
  std::vector<std::byte> a, b;
  std::vector<float> factors;
  LowRank matrices;
};
MadeLowRank make_low_rank(DType type, int64_t a_count, int64_t outputs, int64_t rank, bool is_dora,
                          Random& random) {
  MadeLowRank out;
  const int64_t skip = dtype_bytes(type);
  out.a = stored_as(type, random.normal(a_count), skip);
  out.b.resize(static_cast<size_t>(skip + outputs * rank * dtype_bytes(type)));
  place_low_rank_b(random.normal(outputs * rank).data(), outputs, rank, type, out.b.data() + skip);
  if (is_dora) out.factors = random.normal(outputs);
  out.matrices = {out.a.data() + skip,
                  out.b.data() + skip,
                  type,
                  rank,
                  0.75f,
                  is_dora ? out.factors.data() : nullptr};
  return out;
}

void expect_low_rank_as_reference(const LowRankCase& one, DType type, bool is_table, bool is_dora,
                                  uint32_t seed) {
  Random random(seed);
  SCOPED_TRACE(random.trace() + (is_table ? " table" : "") + (is_dora ? " dora" : ""));
  constexpr int64_t kTableRows = 11;
  std::vector<MadeLowRank> adapters;
  int64_t most_rank = 0;
  for (const int64_t rank : one.ranks) {
    adapters.push_back(make_low_rank(type, (is_table ? kTableRows : one.cols) * rank, one.outputs,
                                     rank, is_dora, random));
    most_rank = std::max(most_rank, rank);
  }
  // Rows that no run has lie between the runs.
  std::vector<LowRankRun> runs;
  int64_t rows = 1;
  for (size_t i = 0; i < one.runs.size(); ++i) {
    runs.push_back({&adapters[i % adapters.size()].matrices, rows, one.runs[i]});
    rows += one.runs[i] + static_cast<int64_t>(i % 2);
  }
  const int64_t x_stride = one.cols + 2, y_stride = one.outputs + 3;
  const std::vector<float> x = random.normal(rows * x_stride),
                           before = random.normal(rows * y_stride);
  const std::vector<float> bias = random.normal(one.outputs);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i)
    ids.push_back(static_cast<int32_t>(random.between(0, kTableRows - 1)));
  std::vector<float> y = before, expected = before;
  LowRankOperands operands{is_table ? nullptr : x.data(),
                           x_stride,
                           one.cols,
                           is_table ? ids.data() : nullptr,
                           y.data(),
                           y_stride,
                           one.outputs,
                           seed % 2 ? bias.data() : nullptr};
  std::vector<float> scratch(static_cast<size_t>(low_rank_scratch_floats(rows, most_rank)));
  add_low_rank(runs, operands, scratch.data());
  operands.y = expected.data();
  reference::add_low_rank(runs, operands);
  const double size = std::sqrt(double(one.cols) * double(most_rank)) + 4;
  expect_close(y, expected, [&](size_t) { return 8 * sum_error(one.cols + most_rank) * size; });
  for (size_t i = 0; i < static_cast<size_t>(y_stride); ++i)
    ASSERT_EQ(y[i], before[i]) << "a row without an adapter stays as it is";
}

TEST(LowRank, AgreesWithTheReferenceOnEveryInstructionSet) {
  uint32_t seed = 1;
  for_each_isa([&] {
    for (const LowRankCase& one : kLowRankCases)
      for (const DType type : kLowRankTypes)
        for (int kind = 0; kind < 4; ++kind, ++seed)
          expect_low_rank_as_reference(one, type, (kind & 1) != 0, (kind & 2) != 0, seed);
  });
}

TEST(LowRank, DoesNothingWithoutRuns) {
  float y = 3;
  add_low_rank({}, {.y = &y, .y_stride = 1, .outputs = 1}, nullptr);
  EXPECT_EQ(y, 3);
}

}  // namespace
}  // namespace sluice::kernels
