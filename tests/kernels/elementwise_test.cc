#include "kernels/elementwise.h"

#include <bit>
#include <cstring>
#include <limits>

#include "tests/kernels/kernel_testing.h"

namespace sluice::kernels {
namespace {

const int64_t kLengths[] = {1, 7, 8, 9, 15, 16, 17, 63, 1000, 70001};

TEST(AddInplace, EqualsTheReferenceExactly) {
  for_each_isa([] {
    for (const int64_t n : kLengths) {
      Random random(static_cast<uint32_t>(n));
      auto y = random.normal(n);
      const auto x = random.normal(n);
      auto expected = y;
      add_inplace(y.data(), x.data(), n);
      reference::add_inplace(expected.data(), x.data(), n);
      EXPECT_EQ(y, expected) << n;
    }
  });
}

// `relative` is held against |x|: silu and both forms of gelu are between 0 and x, or a little
// beside it.
void compare_activation(Activation activation, double relative) {
  for_each_isa([&] {
    for (const int64_t n : kLengths) {
      Random random(static_cast<uint32_t>(n + 1));
      SCOPED_TRACE(random.trace());
      auto x = random.normal(n, 4);
      const float extremes[] = {0.0f,  -0.0f, 1e-30f, -1e-30f, 1e4f,
                                -1e4f, 88.5f, -88.5f, 3e38f,   -3e38f};
      for (size_t i = 0; i < x.size() && i < std::size(extremes); ++i) x[i] = extremes[i];
      const auto source = x;
      auto expected = x;
      activate(activation, x.data(), n);
      reference::activate(activation, expected.data(), n);
      expect_close(x, expected, [&](size_t i) { return relative * std::fabs(source[i]) + 1e-37; });
    }
  });
}

TEST(Activations, ReluEqualsTheReferenceAndKeepsNan) {
  for_each_isa([] {
    std::vector<float> x{1, -1, 0, std::numeric_limits<float>::quiet_NaN(), -5};
    x.resize(37, -2.0f);
    x[20] = std::numeric_limits<float>::quiet_NaN();
    activate(Activation::kRelu, x.data(), std::ssize(x));
    EXPECT_EQ(x[0], 1);
    EXPECT_EQ(x[1], 0);
    EXPECT_TRUE(std::isnan(x[3]));
    EXPECT_TRUE(std::isnan(x[20]));
    EXPECT_EQ(x[36], 0);
  });
}

// e^ has a relative error of 2e-7 and enters through 1 / (1 + e^): never more than its own error,
// plus three roundings.
TEST(Activations, SiluIsAccurate) { compare_activation(Activation::kSilu, 2e-7 + 4 * kRounding); }
// The argument -2u of e^ has a relative error of 4 roundings; u e^-2u / (1 + e^-2u)^2 < 0.25.
TEST(Activations, GeluTanhIsAccurate) {
  compare_activation(Activation::kGeluTanh, 2e-7 + 6 * kRounding);
}
// Phi's argument is squared in e^: z^2 e^(-z^2) < 0.37, times 4 roundings, and the fit's 6.3e-8.
TEST(Activations, GeluErfIsAccurate) {
  compare_activation(Activation::kGelu, 3e-7 + 6 * kRounding);
}

TEST(Activations, ReluSquaredIsAccurate) {
  for_each_isa([] {
    for (const int64_t n : kLengths) {
      Random random(static_cast<uint32_t>(n + 2));
      auto x = random.normal(n, 4);
      auto expected = x;
      activate(Activation::kReluSquared, x.data(), n);
      reference::activate(Activation::kReluSquared, expected.data(), n);
      EXPECT_EQ(x, expected) << n;
    }
  });
}

// u = x / cap and e^2u (within 2e-7 and what u's rounding moves) change tanh by less than 3
// roundings of itself from u = 0.8 on, where they meet; below there are only those of two
// polynomials. A quotient and a product are left.
TEST(SoftCap, IsAccurate) {
  for_each_isa([] {
    for (const float cap : {0.5f, 30.0f, 50.0f})
      for (const int64_t n : kLengths) {
        Random random(static_cast<uint32_t>(n + 3));
        SCOPED_TRACE(random.trace());
        auto x = random.normal(n, 40);
        const float extremes[] = {0.0f, -0.0f, 1e-30f, 1e4f, -1e4f, 3e38f, -3e38f};
        for (size_t i = 0; i < x.size() && i < std::size(extremes); ++i) x[i] = extremes[i];
        auto expected = x;
        soft_cap(x.data(), cap, n);
        reference::soft_cap(expected.data(), cap, n);
        expect_close(x, expected,
                     [&](size_t i) { return 10 * kRounding * std::fabs(expected[i]); });
      }
  });
}

TEST(Scale, ByAFactorAndByPosition) {
  for_each_isa([] {
    for (const int64_t cols : {1, 5, 16, 33, 300}) {
      const std::vector<int32_t> positions{0, 9, 10, 11, 4095, 131071};
      Random random(static_cast<uint32_t>(cols));
      auto x = random.normal(6 * (cols + 3));
      auto expected = x;
      scale_inplace(x.data(), 0.37f, std::ssize(x));
      reference::scale_inplace(expected.data(), 0.37f, std::ssize(x));
      EXPECT_EQ(x, expected);
      for (const float most : {0.0f, 0.2f, 100.0f}) {
        clamp_rows(x.data() + 1, cols + 3, most, 6, cols);
        reference::clamp_rows(expected.data() + 1, cols + 3, most, 6, cols);
        EXPECT_EQ(x, expected) << most;
        x = random.normal(6 * (cols + 3));
        x[1] = std::numeric_limits<float>::infinity();
        expected = x;
      }
      const auto gains = random.normal(cols);
      scale_columns(x.data(), gains.data(), 6, cols);
      reference::scale_columns(expected.data(), gains.data(), 6, cols);
      EXPECT_EQ(x, expected);
      const auto before = x;
      scale_by_position(x.data(), cols + 3, positions.data(), 10, 0.1f, 6, cols);
      reference::scale_by_position(expected.data(), cols + 3, positions.data(), 10, 0.1f, 6, cols);
      expect_close(x, expected, [&](size_t i) {
        const bool is_outside = static_cast<int64_t>(i) % (cols + 3) >= cols;
        return is_outside ? 0.0 : 6 * kRounding * std::fabs(expected[i]);
      });
      for (int64_t i = 0; i < 2 * (cols + 3); ++i)  // the first period stays
        EXPECT_EQ(x[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
    }
  });
}

TEST(RegroupHeads, PutsQBeforeKBeforeV) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18};  // q q k v
  std::vector<float> y(16);
  regroup_heads(x.data(), 16, y.data(), 16, 1, {2, 2, 2});
  EXPECT_EQ(y, (std::vector<float>{1, 2, 3, 4, 11, 12, 13, 14, 5, 6, 15, 16, 7, 8, 17, 18}));
  for (const HeadGroups& heads : {HeadGroups{1, 7, 3}, HeadGroups{5, 1, 8}, HeadGroups{3, 2, 64}}) {
    const int64_t cols = heads.groups * (heads.queries + 2) * heads.head_dim;
    Random random(static_cast<uint32_t>(cols));
    const auto from = random.normal(9 * cols);
    std::vector<float> ours(from.size()), expected(from.size());
    regroup_heads(from.data(), cols, ours.data(), cols, 9, heads);
    reference::regroup_heads(from.data(), cols, expected.data(), cols, 9, heads);
    EXPECT_EQ(ours, expected);
  }
}

TEST(Activations, PassNanOn) {
  for_each_isa([] {
    for (const Activation activation : kActivations) {
      std::vector<float> x(33, 1.0f);
      x[3] = x[32] = std::numeric_limits<float>::quiet_NaN();
      activate(activation, x.data(), 33);
      EXPECT_TRUE(std::isnan(x[3]));
      EXPECT_TRUE(std::isnan(x[32]));
      EXPECT_FALSE(std::isnan(x[4]));
    }
  });
}

// How far activation(gate) may be off.
double allowed_of(Activation activation, float gate) {
  const double size = std::fabs(gate);
  switch (activation) {
    case Activation::kRelu: return 0;
    case Activation::kReluSquared: return 2 * kRounding * size * size;
    case Activation::kGelu: return (3e-7 + 7 * kRounding) * size;
    case Activation::kGeluTanh: return (2e-7 + 7 * kRounding) * size;
    case Activation::kSilu: return (2e-7 + 5 * kRounding) * size;
    // e^-x has a relative error of 2e-7 and is at most the whole of 1 + e^-x.
    case Activation::kSigmoid: return (2e-7 + 5 * kRounding) / (1 + std::exp(-double{gate}));
  }
  return 0;
}

// gate and up are halves of one matrix, as a fused projection writes them; y may be gate or up.
TEST(Gated, AgreesWithTheReferenceForEveryActivationAndWritesOverItsInputs) {
  for_each_isa([] {
    for (const Activation activation : kActivations)
      for (const int64_t cols : {1, 5, 16, 33, 300}) {
        constexpr int64_t kRows = 13;
        Random random(static_cast<uint32_t>(cols));
        SCOPED_TRACE(random.trace());
        auto both = random.normal(kRows * 2 * cols, 3);
        both[0] = -100;
        const auto gate = [&](size_t i) { return both[i / cols * 2 * cols + i % cols]; };
        const auto up = [&](size_t i) { return both[i / cols * 2 * cols + cols + i % cols]; };
        std::vector<float> y(static_cast<size_t>(kRows * cols)), expected(y.size());
        gated(activation, both.data(), 2 * cols, both.data() + cols, 2 * cols, y.data(), cols,
              kRows, cols);
        reference::gated(activation, both.data(), 2 * cols, both.data() + cols, 2 * cols,
                         expected.data(), cols, kRows, cols);
        expect_close(y, expected, [&](size_t i) {
          return allowed_of(activation, gate(i)) * std::fabs(up(i)) +
                 kRounding * std::fabs(expected[i]) + 1e-37;
        });
        for (const int64_t at : {int64_t{0}, cols}) {
          auto in_place = both;
          gated(activation, in_place.data(), 2 * cols, in_place.data() + cols, 2 * cols,
                in_place.data() + at, 2 * cols, kRows, cols);
          for (size_t i = 0; i < y.size(); ++i)
            ASSERT_EQ(in_place[i / cols * 2 * cols + at + i % cols], y[i]);
        }
      }
  });
}

TEST(Activations, SigmoidIsAccurate) {
  for_each_isa([] {
    Random random(5);
    SCOPED_TRACE(random.trace());
    auto x = random.normal(300, 3);
    x[0] = -100;
    const auto source = x;
    auto expected = x;
    activate(Activation::kSigmoid, x.data(), std::ssize(x));
    reference::activate(Activation::kSigmoid, expected.data(), std::ssize(expected));
    expect_close(x, expected,
                 [&](size_t i) { return allowed_of(Activation::kSigmoid, source[i]) + 1e-37; });
  });
}

// As sigmoid's, alpha g rounded before it (which moves e^ by as much as g is large), and some
// roundings of sums that cancel where u is near -1.
TEST(ClampedGate, AgreesWithTheReferenceAndWritesOverTheGate) {
  for_each_isa([] {
    for (const bool has_biases : {false, true})
      for (const int64_t cols : {1, 5, 16, 33, 300}) {
        constexpr int64_t kRows = 13;
        Random random(static_cast<uint32_t>(cols));
        SCOPED_TRACE(random.trace());
        auto gate = random.normal(kRows * (cols + 2), 6);
        const auto up = random.normal(kRows * (cols + 1), 6);
        const auto biases = random.normal(2 * cols, 2);
        const ClampedGateShape shape{7, 1.702f, has_biases ? biases.data() : nullptr};
        gate[0] = -100;
        std::vector<float> y(static_cast<size_t>(kRows * cols), -1.0f), expected = y;
        clamped_gate(shape, gate.data(), cols + 2, up.data(), cols + 1, y.data(), cols, kRows,
                     cols);
        reference::clamped_gate(shape, gate.data(), cols + 2, up.data(), cols + 1, expected.data(),
                                cols, kRows, cols);
        expect_close(y, expected, [&](size_t i) {
          return (2e-7 + 60 * kRounding) * std::fabs(expected[i]) + 40 * kRounding;
        });
        clamped_gate(shape, gate.data(), cols + 2, up.data(), cols + 1, gate.data(), cols + 2,
                     kRows, cols);
        for (int64_t row = 0; row < kRows; ++row)
          for (int64_t i = 0; i < cols; ++i)
            ASSERT_EQ(gate[static_cast<size_t>(row * (cols + 2) + i)],
                      y[static_cast<size_t>(row * cols + i)]);
      }
  });
}

// By hand: both clamps, the one more of u, and biases by turns.
TEST(ClampedGate, ClampsTheGateFromAboveAndUpFromBothSides) {
  const float gate[] = {9, -20, 1, 1}, up[] = {2, 2, 50, -50};
  const float biases[] = {1, 1, 0, 0, 0, 0, 0, 0};
  const auto sigmoid_of = [](double x) { return 1 / (1 + std::exp(-x)); };
  for_each_isa([&] {
    float y[4];
    clamped_gate({7, 1.702f, biases}, gate, 4, up, 4, y, 4, 1, 4);
    EXPECT_NEAR(y[0], 4 * 7 * sigmoid_of(1.702 * 7), 1e-4);
    EXPECT_NEAR(y[1], 3 * -20 * sigmoid_of(1.702 * -20), 1e-6);
    EXPECT_NEAR(y[2], 8 * sigmoid_of(1.702), 1e-5);
    EXPECT_NEAR(y[3], -6 * sigmoid_of(1.702), 1e-5);
  });
}

TEST(TakeHeads, EqualsTheReference) {
  for (const TakenHeads& taken : {TakenHeads{1, 1, 1, 0}, TakenHeads{3, 5, 2, 0},
                                  TakenHeads{3, 5, 2, 1}, TakenHeads{7, 16, 3, 2}}) {
    Random random(static_cast<uint32_t>(taken.heads));
    const int64_t cols = taken.heads * taken.head_dim, wide = cols * taken.period + 2;
    const auto x = random.normal(9 * wide);
    std::vector<float> y(static_cast<size_t>(9 * (cols + 1)), 7), expected = y;
    take_heads(x.data(), wide, y.data(), cols + 1, 9, taken);
    reference::take_heads(x.data(), wide, expected.data(), cols + 1, 9, taken);
    EXPECT_EQ(y, expected);
  }
}

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST(Convert, WidensEvery16BitPatternExactly) {
  for_each_isa([] {
    std::vector<uint16_t> all(65536 + 3);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    for (const DType type : {DType::kF16, DType::kBF16}) {
      std::vector<float> wide(all.size()), expected(all.size());
      convert(type, all.data(), DType::kF32, wide.data(), static_cast<int64_t>(all.size()));
      reference::convert(type, all.data(), DType::kF32, expected.data(),
                         static_cast<int64_t>(all.size()));
      for (size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(expected[i]))
          EXPECT_TRUE(std::isnan(wide[i])) << dtype_name(type) << " pattern " << i;
        else
          EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected[i]))
              << dtype_name(type) << " " << i;
      }
    }
  });
}

// Bits that halve, overflow, underflow and tie; every exponent.
std::vector<float> hard_to_round() {
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const uint32_t fraction : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu,
                                    0x8000u, 0x8001u, 0x18000u, 0x7fffffu, 0x400000u, 0x5a5a5au})
      for (const uint32_t sign : {0u, 0x80000000u})
        values.push_back(std::bit_cast<float>(sign | exponent << 23 | fraction));
  values.push_back(-0.0f);
  return values;
}

TEST(Convert, RoundsToNearestEvenBetweenAllPairs) {
  for_each_isa([] {
    const std::vector<float> values = hard_to_round();
    const auto n = static_cast<int64_t>(values.size());
    for (const DType from : kTypes)
      for (const DType to : kTypes) {
        const auto source = stored_as(from, values);
        std::vector<std::byte> result(values.size() * 4), expected(values.size() * 4);
        convert(from, source.data(), to, result.data(), n);
        reference::convert(from, source.data(), to, expected.data(), n);
        std::vector<float> wide(values.size()), wide_expected(values.size());
        reference::convert(to, result.data(), DType::kF32, wide.data(), n);
        reference::convert(to, expected.data(), DType::kF32, wide_expected.data(), n);
        for (size_t i = 0; i < values.size(); ++i) {
          if (std::isnan(wide_expected[i]))
            EXPECT_TRUE(std::isnan(wide[i])) << i;
          else
            EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(wide_expected[i]))
                << dtype_name(from) << " to " << dtype_name(to) << " of " << values[i] << " at "
                << i;
        }
      }
  });
}

TEST(Convert, TakesOddLengthsAtOddAddresses) {
  for_each_isa([] {
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{17}, int64_t{257}, int64_t{50001}}) {
      Random random(static_cast<uint32_t>(n));
      SCOPED_TRACE(random.trace());
      const auto values = random.normal(n);
      for (const DType from : {DType::kF16, DType::kBF16}) {
        const auto source = stored_as(from, values, 2);
        std::vector<float> wide(values.size() + 1, -1.0f);
        convert(from, source.data() + 2, DType::kF32, wide.data(), n);
        EXPECT_EQ(wide.back(), -1.0f) << "wrote past the end";
        wide.pop_back();
        EXPECT_EQ(wide, rounded_to(from, values));
      }
    }
  });
}

TEST(GatherRows, EqualsTheReferenceForAllTypes) {
  for_each_isa([] {
    for (const DType type : kTypes)
      for (const int64_t cols : {1, 15, 33, 4096}) {
        Random random(static_cast<uint32_t>(cols));
        constexpr int64_t kTableRows = 19;
        const auto table = stored_as(type, random.normal(kTableRows * cols), dtype_bytes(type));
        std::vector<int32_t> ids;
        for (int i = 0; i < 40; ++i)
          ids.push_back(static_cast<int32_t>(random.between(0, kTableRows - 1)));
        std::vector<float> out(ids.size() * static_cast<size_t>(cols)), expected(out.size());
        gather_rows(table.data() + dtype_bytes(type), type, cols, ids.data(), 40, out.data());
        reference::gather_rows(table.data() + dtype_bytes(type), type, cols, ids.data(), 40,
                               expected.data());
        EXPECT_EQ(out, expected) << dtype_name(type) << " " << cols;
      }
  });
}

}  // namespace
}  // namespace sluice::kernels
