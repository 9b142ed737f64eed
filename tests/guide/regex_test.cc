#include "src/guide/regex.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "src/base/error.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

// Against the standard library's, over texts made of what the patterns speak of.
TEST(Regex, ReadsWhatTheStandardLibraryMatches) {
  const char* patterns[] = {
      "abc",           "a|bc|",      "a*b+c?",      "(ab|c)*d",    "[a-c]{2,4}",   "[^ab]c",
      "a{3}",          "a{2,}b",     R"(\d+\.\d*)", R"(\w+\s\w)",  "(a(b(c)?)?)?", ".b.",
      "(?:a|b){1,3}c", R"([\d\-a])", R"(a\+b\*)",   "[]a]b",       "a{,2}b",       "x{a}",
      "(a|b)*abb",     "^ab$",       "^a|b$",       R"([^\s\d]+)", "a??b",         "[a-]"};
  std::mt19937 random(5);
  constexpr std::string_view kLetters = "abcdx1 .+*-]{}";
  for (const char* pattern : patterns) {
    // Written differently by the library.
    std::string theirs = pattern;
    if (theirs == "[]a]b") theirs = R"([\]a]b)";
    if (theirs == "a{,2}b") theirs = "a{0,2}b";
    if (theirs == "x{a}") theirs = R"(x\{a\})";
    const std::regex oracle(theirs);
    Automaton automaton = automaton_of_regex(pattern);
    int matched = 0;
    for (int i = 0; i < 4000; ++i) {
      std::string text;
      const auto length = std::uniform_int_distribution<size_t>(0, 6)(random);
      for (size_t at = 0; at < length; ++at)
        text += kLetters[std::uniform_int_distribution<size_t>(
            0, i % 2 == 0 ? 3 : kLetters.size() - 1)(random)];
      const bool expected = std::regex_match(text, oracle);
      ASSERT_EQ(matches(automaton, text), expected) << pattern << " on " << text;
      matched += expected;
    }
    EXPECT_TRUE(matched > 0 || std::string_view(pattern) == R"(\d+\.\d*)" ||
                std::string_view(pattern) == "x{a}" || std::string_view(pattern) == R"(a\+b\*)")
        << pattern << " was never matched";
  }
}

TEST(Regex, ReadsUnicodeByCharacters) {
  Automaton automaton = automaton_of_regex("[ä-ü]{2}.€\\u00df[^a]");
  EXPECT_TRUE(matches(automaton, "äü😀€ßb"));
  EXPECT_TRUE(matches(automaton, "öö€€ß🎈"));
  EXPECT_FALSE(matches(automaton, "öö€€ßa"));
  EXPECT_FALSE(matches(automaton, "öz€€ßb"));
  // Half a character is not the end, and bytes that are no UTF-8 lead nowhere.
  EXPECT_FALSE(matches(automaton, std::string("äü😀€ß\xF0\x9F\x8E")));
  Automaton any = automaton_of_regex("(.|\\n)*");
  for (const char* broken : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"})
    EXPECT_EQ(read(any, broken), Automaton::kDead);
  for (const char* whole : {"\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "\xEE\x80\x80", "\x7F", "\xC2\x80"})
    EXPECT_TRUE(matches(any, whole));
}

TEST(Regex, SearchesUnlessItIsAnchored) {
  const auto search = [](const char* pattern, const char* text) {
    Automaton automaton(Grammar().build(parse_regex(pattern, Anchoring::kSearch)));
    return matches(automaton, text);
  };
  EXPECT_TRUE(search("b", "abc"));
  EXPECT_TRUE(search("^a", "abc"));
  EXPECT_FALSE(search("^b", "abc"));
  EXPECT_TRUE(search("c$", "abc"));
  EXPECT_FALSE(search("^a|b$", "cbc"));
  EXPECT_TRUE(search("^a|b$", "cb"));
}

TEST(Regex, WritesStringsAsJsonDoes) {
  Automaton automaton(
      Grammar().build(parse_regex(R"(["\\\n\x01a]+)", Anchoring::kWhole, Spelling::kJson)));
  EXPECT_TRUE(matches(automaton, R"(\"\\\n\u0001a)"));
  EXPECT_FALSE(matches(automaton, "\""));
  EXPECT_FALSE(matches(automaton, "\n"));
}

TEST(Regex, RefusesWithThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "')'"},           {"a)", "closes nothing"},    {"[a", "']'"},
      {"*a", "of nothing"},    {"a**", "in a row"},         {R"(\bword)", "\\b"},
      {R"((a)\1)", "\\1"},     {"(?=a)", "look-ahead"},     {"(?<=a)b", "look-behind"},
      {"a{5,2}", "wrong way"}, {"a{99999}", "repetitions"}, {"b^a", "'^'"},
      {"a$b", "'$'"},          {R"(\)", "backslash"},       {R"(\u12)", "hexadecimal"},
      {"[z-a]", "in order"},   {"a\xFF", "UTF-8"},          {"a++", "possessive"},
      {"(?i)a", "flags"}};
  for (const auto& [pattern, wanted] : cases) {
    try {
      parse_regex(pattern);
      ADD_FAILURE() << pattern << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find(wanted), std::string::npos) << pattern << ": " << error.text();
      EXPECT_NE(error.text().find("at byte"), std::string::npos);
    }
  }
  EXPECT_THROW(parse_regex(std::string(100'000, '(')), Error);
}

TEST(Regex, TakesAnythingWithoutHarm) {
  std::mt19937 random(9);
  constexpr std::string_view kParts = R"(ab(|)[]{}*+?^$.\dw1,-:<=!P>)";
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string pattern;
    const auto length = std::uniform_int_distribution<size_t>(0, 12)(random);
    for (size_t at = 0; at < length; ++at)
      pattern += kParts[std::uniform_int_distribution<size_t>(0, kParts.size() - 1)(random)];
    try {
      Automaton automaton = automaton_of_regex(pattern);
      read(automaton, "abab11");
      ++taken;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUser) << pattern;
    }
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace sluice::guide
