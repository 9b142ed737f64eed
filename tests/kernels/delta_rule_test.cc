#include "kernels/delta_rule.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

constexpr RecurrentRule kSpace = RecurrentRule::kStateSpace;

// Key heads, value heads, key width, value width, taps.
const RecurrentShape kShapes[] = {{1, 1, 1, 1, 1},
                                  {1, 1, 8, 8, 4},
                                  {2, 4, 5, 7, 3},
                                  {1, 3, 16, 16, 4},
                                  {3, 3, 17, 33, 2},
                                  {2, 6, 32, 65, 4},
                                  {2, 2, 128, 128, 4},
                                  {1, 1, 512, 3, 16},
                                  {1, 1, 1, 1, 1, kSpace},
                                  {1, 4, 8, 8, 4, kSpace},
                                  {2, 4, 5, 7, 3, kSpace},
                                  {3, 3, 17, 33, 2, kSpace},
                                  {1, 2, 128, 64, 4, kSpace},
                                  {1, 1, 512, 65, 16, kSpace}};

/// A layer's inputs for some rows, and what reads them.
struct Layer {
  Layer(const RecurrentShape& of, int64_t rows, uint32_t seed) : shape(of), random(seed) {
    const int64_t columns = shape.columns(), heads = shape.value_heads;
    stride = columns + 3;
    x = random.normal(rows * stride);
    weights = random.normal(columns * shape.taps, 0.5f);
    bias = random.normal(columns, 0.5f);
    skip = random.normal(heads);
    learned = random.normal(rows * (heads + 1));
    activate(Activation::kSigmoid, learned.data(), std::ssize(learned));
    kept = random.normal(rows * (heads + 2));
    for (float& value : kept) value = 1 - 0.2f * std::fabs(std::tanh(value));
    convolved.resize(x.size());
    out.resize(static_cast<size_t>(rows * (shape.value_columns() + 1)));
  }

  // A gated delta net has neither a bias nor a skip.
  const float* conv_bias() const { return shape.is_delta() ? nullptr : bias.data(); }
  RuleRows rule_rows() const {
    return {convolved.data(),
            stride,
            learned.data(),
            shape.value_heads + 1,
            kept.data(),
            shape.value_heads + 2,
            shape.is_delta() ? nullptr : skip.data()};
  }
  int64_t out_stride() const { return shape.value_columns() + 1; }
  void run(std::span<const StateRun> runs) {
    causal_conv_silu(shape, weights.data(), conv_bias(), x.data(), stride, runs, convolved.data(),
                     stride);
    recurrent_rule(shape, rule_rows(), runs, out.data(), out_stride());
  }
  void run_reference(std::span<const StateRun> runs) {
    reference::causal_conv_silu(shape, weights.data(), conv_bias(), x.data(), stride, runs,
                                convolved.data(), stride);
    reference::recurrent_rule(shape, rule_rows(), runs, out.data(), out_stride());
  }

  RecurrentShape shape;
  Random random;
  int64_t stride = 0;
  std::vector<float> x, weights, bias, skip, learned, kept, convolved, out;
};

// What goes wrong in one token is handed on, shrunk by its gates: with those above, never below
// 0.8, some hundred roundings of sums over the keys in all.
double allowed(const RecurrentShape& shape, double value) {
  return 40 * sum_error(shape.key_width + shape.taps) * (std::fabs(value) + 1);
}

void expect_alike(const RecurrentShape& shape, const std::vector<float>& actual,
                  const std::vector<float>& expected) {
  expect_close(actual, expected, [&](size_t i) { return allowed(shape, expected[i]); });
}

std::vector<float> state_of(const RecurrentShape& shape, float value = 0) {
  return std::vector<float>(static_cast<size_t>(shape.floats()), value);
}

TEST(DeltaRule, AgreesWithTheReferenceOnAllShapesAndLengths) {
  for_each_isa([] {
    for (const RecurrentShape& shape : kShapes)
      for (const int64_t count : {1, 2, 3, 7, 64, 65}) {
        Layer layer(shape, count, static_cast<uint32_t>(shape.floats() + count));
        SCOPED_TRACE(layer.random.trace());
        Layer plain = layer;
        const std::vector<float> before = layer.random.normal(shape.floats());
        std::vector<float> state = state_of(shape, NAN), expected = state_of(shape);
        const float* from = count % 2 == 0 ? nullptr : before.data();
        const StateRun fast[] = {{0, count, from, state.data()}};
        const StateRun slow[] = {{0, count, from, expected.data()}};
        layer.run(fast);
        plain.run_reference(slow);
        expect_alike(shape, layer.convolved, plain.convolved);
        expect_alike(shape, layer.out, plain.out);
        expect_alike(shape, state, expected);
      }
  });
}

TEST(DeltaRule, GivesTheSameInAnyCuts) {
  for_each_isa([] {
    for (const RecurrentShape& shape : kShapes) {
      constexpr int64_t kRows = 70;
      Layer whole(shape, kRows, static_cast<uint32_t>(shape.floats()));
      SCOPED_TRACE(whole.random.trace());
      Layer cut = whole;
      std::vector<float> expected = state_of(shape), state = state_of(shape, NAN);
      const StateRun all[] = {{0, kRows, nullptr, expected.data()}};
      whole.run(all);
      for (int64_t row = 0; row < kRows;) {
        const int64_t count = std::min<int64_t>(cut.random.between(1, 20), kRows - row);
        const StateRun run[] = {{row, count, row == 0 ? nullptr : state.data(), state.data()}};
        cut.run(run);
        row += count;
      }
      EXPECT_EQ(cut.out, whole.out);
      EXPECT_EQ(state, expected);
    }
  });
}

// What is kept on the way is what a run that ends there would leave, wherever it is put.
TEST(DeltaRule, KeepsAStateOnTheWay) {
  for_each_isa([] {
    for (const RecurrentShape& shape : kShapes)
      for (const int64_t kept : {1, 2, 15, 18}) {
        constexpr int64_t kRows = 19;
        Layer whole(shape, kRows, static_cast<uint32_t>(shape.floats() + kept));
        SCOPED_TRACE(whole.random.trace());
        Layer halves = whole, in_place = whole;
        const std::vector<float> before = whole.random.normal(shape.floats());
        std::vector<float> end = state_of(shape), on_the_way = state_of(shape, NAN);
        const StateRun all[] = {{0, kRows, before.data(), end.data(), kept, on_the_way.data()}};
        whole.run(all);
        std::vector<float> first = state_of(shape), second = state_of(shape);
        const StateRun one[] = {{0, kept, before.data(), first.data()}};
        const StateRun other[] = {{kept, kRows - kept, first.data(), second.data()}};
        halves.run(one);
        halves.run(other);
        EXPECT_EQ(whole.out, halves.out);
        EXPECT_EQ(on_the_way, first);
        EXPECT_EQ(end, second);
        std::vector<float> same = before;
        const StateRun over[] = {{0, kRows, same.data(), end.data(), kept, same.data()}};
        in_place.run(over);
        EXPECT_EQ(in_place.out, whole.out);
        EXPECT_EQ(same, first);
        EXPECT_EQ(end, second);
      }
  });
}

// Sequences that are computed together know nothing of each other.
TEST(DeltaRule, ComputesManyRunsAsEachAlone) {
  for_each_isa([] {
    for (const RecurrentShape& shape : kShapes) {
      constexpr int64_t kRuns = 5;
      Layer together(shape, 40, static_cast<uint32_t>(shape.floats() + 5));
      SCOPED_TRACE(together.random.trace());
      Layer alone = together;
      std::vector<StateRun> runs;
      std::vector<std::vector<float>> states, expected;
      int64_t row = 0;
      for (int64_t i = 0; i < kRuns; ++i) {
        states.push_back(together.random.normal(shape.floats()));
        expected.push_back(states.back());
      }
      for (int64_t i = 0; i < kRuns; ++i) {
        const int64_t count = i == 2 ? 20 : together.random.between(1, 3);
        const auto at = static_cast<size_t>(i);
        runs.push_back({row, count, i == 0 ? nullptr : states[at].data(), states[at].data()});
        StateRun one = runs.back();
        if (one.from) one.from = expected[at].data();
        one.to = expected[at].data();
        alone.run({&one, 1});
        row += count;
      }
      together.run(runs);
      const auto used = static_cast<std::ptrdiff_t>(row * together.out_stride());
      EXPECT_TRUE(std::equal(together.out.begin(), together.out.begin() + used, alone.out.begin()));
      EXPECT_EQ(states, expected);
    }
  });
}

TEST(DeltaRule, LeavesAnEmptyHeadAtZeroAndAllOfAGateOfZero) {
  const RecurrentShape shape{1, 1, 8, 8, 1};
  Layer layer(shape, 4, 3);
  std::fill(layer.convolved.begin(), layer.convolved.end(), 0.0f);
  std::fill(layer.kept.begin(), layer.kept.end(), 0.0f);
  std::vector<float> state = layer.random.normal(shape.floats());
  const StateRun run[] = {{0, 4, state.data(), state.data()}};
  recurrent_rule(shape, layer.rule_rows(), run, layer.out.data(), layer.out_stride());
  for (const float value : state) EXPECT_EQ(value, 0);
}

TEST(DecayGates, AreAccurate) {
  Random random(7);
  constexpr int64_t kRows = 9, kHeads = 13;
  auto x = random.normal(kRows * (kHeads + 2), 8);
  x[0] = 30, x[1] = -90, x[2] = 19.9f, x[3] = 1e4f;
  auto expected = x;
  const auto a_log = random.normal(kHeads), bias = random.normal(kHeads);
  constexpr int64_t kStride = kHeads + 2;
  constexpr float kNone = std::numeric_limits<float>::infinity();
  auto bounded = x, in_bounds = x;
  time_steps(bounded.data(), kStride, bias.data(), 0.5f, 1, kRows, kHeads);
  reference::time_steps(in_bounds.data(), kStride, bias.data(), 0.5f, 1, kRows, kHeads);
  expect_close(bounded, in_bounds, [](size_t) { return 8 * kRounding; });
  time_steps(x.data(), kStride, bias.data(), 0, kNone, kRows, kHeads);
  reference::time_steps(expected.data(), kStride, bias.data(), 0, kNone, kRows, kHeads);
  // The sum with the bias has a rounding of its own, which e^z hands on.
  expect_close(x, expected, [&](size_t i) { return 100 * kRounding * std::fabs(expected[i]); });
  x = expected;
  auto steps = x;
  decay_gates(steps.data(), kStride, a_log.data(), x.data(), kStride, kRows, kHeads);
  reference::decay_gates(steps.data(), kStride, a_log.data(), expected.data(), kStride, kRows,
                         kHeads);
  decay_gates(steps.data(), kStride, a_log.data(), steps.data(), kStride, kRows, kHeads);
  EXPECT_EQ(steps, x) << "in place";
  // z e^-z < 0.37: the exponent's relative error of some roundings is at most so much of e^-z.
  expect_close(x, expected,
               [&](size_t i) { return 12 * kRounding * std::fabs(expected[i]) + 4 * kRounding; });
}

}  // namespace
}  // namespace sluice::kernels
