#include "src/guide/automaton.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

TEST(Automaton, ReadsNestedCallsToTheirEndOnly) {
  // a ( b* ) c, nested: balanced brackets round an x.
  Grammar grammar;
  const int32_t rule = grammar.add_rule();
  grammar.define(rule, either({literal("x"), sequence({literal("("), call(rule), literal(")")})}));
  Automaton automaton(grammar.build(call(rule)));
  EXPECT_TRUE(matches(automaton, "x"));
  EXPECT_TRUE(matches(automaton, "(((x)))"));
  EXPECT_FALSE(matches(automaton, "(((x))"));
  EXPECT_FALSE(matches(automaton, "((x)))"));
  EXPECT_TRUE(automaton.is_final(read(automaton, "(x)")));
  EXPECT_FALSE(automaton.is_final(read(automaton, "(x")));
  const std::string deep(255, '(');
  EXPECT_NE(read(automaton, deep), Automaton::kDead);
  EXPECT_EQ(read(automaton, std::string(100'000, '(')), Automaton::kDead) << "nesting is bounded";
}

TEST(Automaton, ACallAtARulesEndNeedsNoRoom) {
  // A list by recursion at its end: as long as one likes.
  Grammar grammar;
  const int32_t rule = grammar.add_rule();
  grammar.define(rule, sequence({literal("a"), optional(call(rule))}));
  Automaton automaton(grammar.build(call(rule)));
  EXPECT_TRUE(matches(automaton, std::string(50'000, 'a')));
  EXPECT_LT(automaton.states(), 10u);
}

TEST(Automaton, RepetitionsOfNothingEnd) {
  Automaton automaton(Grammar().build(repeat(repeat(optional(literal("a")), 0), 0)));
  EXPECT_TRUE(matches(automaton, ""));
  EXPECT_TRUE(matches(automaton, "aaaa"));
  EXPECT_FALSE(matches(automaton, "b"));
}

TEST(Automaton, RefusesWhatGrowsTooLarge) {
  EXPECT_THROW(Grammar().build(repeat(repeat(repeat(literal("ab"), 100), 100), 100)), Error);
  // A rule that calls itself first is never read; it must not loop either.
  Grammar grammar;
  const int32_t rule = grammar.add_rule();
  grammar.define(rule, either({sequence({call(rule), literal("a")}), literal("b")}));
  Automaton automaton(grammar.build(call(rule)));
  EXPECT_TRUE(matches(automaton, "baaa"));
}

}  // namespace
}  // namespace sluice::guide
