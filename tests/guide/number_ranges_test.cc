#include "src/guide/number_ranges.h"

#include <gtest/gtest.h>

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
    Automaton automaton(Grammar().build(numbers(least, most)));
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

}  // namespace
}  // namespace sluice::guide
