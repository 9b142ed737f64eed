#include "src/guide/number_ranges.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>

#include "src/base/error.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

TEST(Integers, AreThoseWithinTheBounds) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const int64_t least = pick(-1300, 1200), most = least + pick(0, 700);
    Automaton automaton(Grammar().build(integers(least, most)));
    for (int64_t value = -1500; value <= 2000; ++value)
      ASSERT_EQ(matches(automaton, std::to_string(value)), value >= least && value <= most)
          << value << " in " << least << ".." << most;
    for (const char* wrong : {"", "-", "00", "01", "-0", "+1", "1.0", "1e2"})
      EXPECT_FALSE(matches(automaton, wrong)) << wrong;
  }
}

TEST(Integers, WithoutABoundHaveFifteenDigits) {
  Automaton any(Grammar().build(integers({}, {})));
  EXPECT_TRUE(matches(any, "999999999999999"));
  EXPECT_TRUE(matches(any, "-999999999999999"));
  EXPECT_FALSE(matches(any, "1000000000000000"));
  Automaton positive(Grammar().build(integers(1, {})));
  EXPECT_FALSE(matches(positive, "0"));
  EXPECT_FALSE(matches(positive, "-5"));
  EXPECT_TRUE(matches(positive, "123456"));
  EXPECT_THROW(integers(5, 4), Error);
  EXPECT_THROW(integers(kLargestInteger + 1, {}), Error);
}

TEST(Numbers, AreThoseWithinTheBounds) {
  for (const auto& [least, most] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {-2, 3}, {-5, -1}, {7, 7}, {0, 100}, {-1, 0}}) {
    Automaton automaton(Grammar().build(
        numbers(Decimal::parse(std::to_string(least)), Decimal::parse(std::to_string(most)))));
    for (int hundredths = -700; hundredths <= 10'100; ++hundredths) {
      char text[32];
      std::snprintf(text, sizeof text, "%.2f", hundredths / 100.0);
      const bool within = hundredths >= 100 * least && hundredths <= 100 * most;
      ASSERT_EQ(matches(automaton, text), within) << text << " in " << least << ".." << most;
    }
  }
  Automaton any(Grammar().build(numbers({}, {})));
  for (const char* right : {"0", "-0", "12.5", "1e5", "-1.25E-10", "0.001"})
    EXPECT_TRUE(matches(any, right)) << right;
  for (const char* wrong : {"", ".5", "5.", "01", "1e", "--1", "1.2.3", "NaN"})
    EXPECT_FALSE(matches(any, wrong)) << wrong;
}

// Every number of up to three digits behind the point against the bounds' own order.
TEST(Numbers, OfDecimalBoundsAreThoseWithin) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto text_of = [](int thousandths, int digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%d.%03d", thousandths < 0 ? "-" : "",
                  std::abs(thousandths) / 1000, std::abs(thousandths) % 1000);
    std::string out = text;
    return digits == 0 ? out.substr(0, out.size() - 4) : out.substr(0, out.size() - 3 + digits);
  };
  for (int round = 0; round < 150; ++round) {
    const int unit = std::array{1, 10, 100, 1000}[static_cast<size_t>(pick(0, 3))];
    const int a = pick(-2500, 2500) / unit * unit, b = pick(-2500, 2500) / unit * unit;
    const int low = std::min(a, b), high = std::max(a, b);
    std::optional<Decimal> least = Decimal::parse(text_of(low, 3)),
                           most = Decimal::parse(text_of(high, 3));
    least->is_excluded = pick(0, 1) == 1;
    most->is_excluded = pick(0, 1) == 1;
    const int sides = pick(0, 3);
    if (sides == 1) least.reset();
    if (sides == 2) most.reset();
    if (sides == 3 && low == high) least->is_excluded = most->is_excluded = false;
    const auto is_within = [&](int value) {
      if (least && (value < low || (value == low && least->is_excluded))) return false;
      return !most || value < high || (value == high && !most->is_excluded);
    };
    std::optional<Automaton> automaton;
    try {
      automaton.emplace(Grammar().build(numbers(least, most)));
    } catch (const Error&) {
      EXPECT_TRUE(least && most && low == high) << low << " " << high;
      continue;
    }
    for (int value = -3100; value <= 3100; value += pick(1, 3)) {
      ASSERT_EQ(matches(*automaton, text_of(value, 3)), is_within(value))
          << text_of(value, 3) << " in " << low << ".." << high;
      if (value % 10 == 0) {
        ASSERT_EQ(matches(*automaton, text_of(value, 2)), is_within(value)) << value;
      }
      if (value % 1000 == 0 && value != 0) {
        ASSERT_EQ(matches(*automaton, text_of(value, 0)), is_within(value)) << value;
      }
    }
    for (const char* wrong : {"", "-", "1.", ".5", "01.5", "+1"})
      EXPECT_FALSE(matches(*automaton, wrong)) << wrong;
  }
  EXPECT_EQ(Decimal::parse("1e-7")->fraction, "0000001");
  EXPECT_EQ(Decimal::parse("-1.50e1")->whole, 15);
  EXPECT_EQ(Decimal::parse("-0.0")->is_negative, false);
  EXPECT_FALSE(Decimal::parse("1e21"));
  EXPECT_EQ(Decimal::parse("1.5e3")->fraction, "");
}

TEST(Multiples, AreThoseOfTheNumber) {
  for (const int64_t of : {2, 3, 5, 7, 10, 60, 250, 1000})
    for (const auto& [least, most] :
         std::vector<std::pair<std::optional<int64_t>, std::optional<int64_t>>>{
             {{}, {}}, {0, {}}, {1, {}}, {-40, 900}, {3, 1000}}) {
      Grammar grammar;
      ExprPtr expr;
      try {
        expr = multiples(of, least, most, grammar);
      } catch (const Error&) {
        EXPECT_TRUE(least && most && of > *most);
        continue;
      }
      ASSERT_TRUE(expr);
      Automaton automaton(grammar.build(expr));
      for (int64_t value = -1100; value <= 2100; ++value) {
        const bool is_within = (!least || value >= *least) && (!most || value <= *most);
        ASSERT_EQ(matches(automaton, std::to_string(value)), is_within && value % of == 0)
            << value << " of " << of;
      }
      for (const char* wrong : {"", "-", "00", "-0", "010", "10.0"})
        EXPECT_FALSE(matches(automaton, wrong)) << wrong << " of " << of;
    }
  Grammar grammar;
  EXPECT_FALSE(multiples(7, {}, 100, grammar)) << "too much to say";
  EXPECT_FALSE(multiples(7, 0, 1'000'000, grammar));
}

}  // namespace
}  // namespace sluice::guide
