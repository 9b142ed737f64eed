#include "src/guide/gbnf.h"

#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <random>
#include <set>

#include "src/base/error.h"
#include "src/guide/guide_maker.h"
#include "src/sampling/sampler.h"
#include "src/text/utf8.h"
#include "tests/guide/byte_tokenizer.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

using Random = std::mt19937;
int pick(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

Automaton automaton_of(std::string_view text) {
  Grammar grammar;
  const ExprPtr start = parse_gbnf(text, grammar);
  return Automaton(grammar.build(start));
}

// A grammar as a tree of its own, which is written as GBNF and matched by trying all ways; nothing
// of the code under test has a part in it.
struct Tree {
  enum Kind { kText, kClass, kAny, kSequence, kWays, kTimes, kRule } kind = kText;
  std::u32string characters;  // kText, kClass
  bool is_inverted = false;
  std::vector<Tree> parts;
  int least = 0, most = -1;
  int rule = 0;
};

// Where a match that begins at `at` may end.
std::set<size_t> ends_of(const Tree& tree, const std::vector<Tree>& rules,
                         const std::u32string& text, size_t at) {
  switch (tree.kind) {
    case Tree::kText:
      if (text.compare(at, tree.characters.size(), tree.characters) != 0) return {};
      return {at + tree.characters.size()};
    case Tree::kAny: return at < text.size() ? std::set<size_t>{at + 1} : std::set<size_t>{};
    case Tree::kClass: {
      if (at >= text.size()) return {};
      const bool is_in = tree.characters.find(text[at]) != std::u32string::npos;
      return is_in != tree.is_inverted ? std::set<size_t>{at + 1} : std::set<size_t>{};
    }
    case Tree::kSequence: {
      std::set<size_t> ends{at};
      for (const Tree& part : tree.parts) {
        std::set<size_t> next;
        for (const size_t end : ends) next.merge(ends_of(part, rules, text, end));
        ends = std::move(next);
      }
      return ends;
    }
    case Tree::kWays: {
      std::set<size_t> ends;
      for (const Tree& part : tree.parts) ends.merge(ends_of(part, rules, text, at));
      return ends;
    }
    case Tree::kTimes: {
      std::set<size_t> ends, now{at};
      if (tree.least == 0) ends.insert(at);
      // More times than the text has characters add nothing, beyond the least.
      const int most = tree.most < 0 ? tree.least + static_cast<int>(text.size()) + 1 : tree.most;
      for (int times = 1; times <= most && !now.empty(); ++times) {
        std::set<size_t> next;
        for (const size_t end : now) next.merge(ends_of(tree.parts[0], rules, text, end));
        now = std::move(next);
        if (times >= tree.least) ends.insert(now.begin(), now.end());
      }
      return ends;
    }
    case Tree::kRule: return ends_of(rules[static_cast<size_t>(tree.rule)], rules, text, at);
  }
  return {};
}

constexpr std::u32string_view kAlphabet = U"abc\"\\]^-\n é😀";

std::string utf8(const std::u32string& text) {
  std::string out;
  for (const char32_t c : text) text::append_utf8(out, c);
  return out;
}

std::string escaped(char32_t c, bool in_class, Random& random) {
  char buffer[16];
  const int how = pick(random, 0, 9);
  if (how == 0 && c < 0x100) return std::snprintf(buffer, 16, "\\x%02X", unsigned(c)), buffer;
  if (how == 1 && c < 0x10000) return std::snprintf(buffer, 16, "\\u%04x", unsigned(c)), buffer;
  if (how == 2) return std::snprintf(buffer, 16, "\\U%08x", unsigned(c)), buffer;
  if (c == '\n') return "\\n";
  if (c == '\\' || c == '"' || (in_class && (c == ']' || c == '^' || c == '-')))
    return std::string("\\") + static_cast<char>(c);
  return utf8({c});
}

// Rules are r0, r1, ...; the text is written with spaces and comments where they may be.
std::string written(const Tree& tree, bool in_group, Random& random) {
  const auto space = [&]() -> std::string {
    if (in_group && pick(random, 0, 7) == 0) return " # \"so\n ";
    return pick(random, 0, 2) == 0 ? "\t " : " ";
  };
  std::string out;
  switch (tree.kind) {
    case Tree::kText:
      out = "\"";
      for (const char32_t c : tree.characters) out += escaped(c, false, random);
      return out + "\"";
    case Tree::kClass:
      out = tree.is_inverted ? "[^" : "[";
      for (const char32_t c : tree.characters) {
        out += escaped(c, true, random);
        if (pick(random, 0, 3) == 0) out += "-" + escaped(c, true, random);
      }
      return out + "]";
    case Tree::kAny: return ".";
    case Tree::kRule: return tree.rule == 0 ? "root" : "r-" + std::to_string(tree.rule);
    case Tree::kSequence:
      for (const Tree& part : tree.parts) {
        const bool is_group = part.kind == Tree::kWays || part.kind == Tree::kSequence;
        const std::string one = written(part, in_group || is_group, random);
        out += (is_group ? "(" + one + ")" : one) + space();
      }
      return out;
    case Tree::kWays:
      for (size_t i = 0; i < tree.parts.size(); ++i) {
        const std::string between = pick(random, 0, 1) == 0 ? "|\n" : "\n  |";
        if (i > 0) out += pick(random, 0, 1) == 0 ? " | " : between;
        const Tree& part = tree.parts[i];
        out += part.kind == Tree::kWays ? "(" + written(part, true, random) + ")"
                                        : written(part, in_group, random);
      }
      return out;
    case Tree::kTimes: {
      const Tree& what = tree.parts[0];
      const bool is_group =
          what.kind == Tree::kWays || what.kind == Tree::kSequence || what.kind == Tree::kTimes;
      const std::string one = written(what, is_group || in_group, random);
      out = is_group ? "(" + one + ")" : one;
      const int least = tree.least, most = tree.most;
      if (least == 0 && most == -1 && pick(random, 0, 1) == 0) return out + "*";
      if (least == 1 && most == -1 && pick(random, 0, 1) == 0) return out + " +";
      if (least == 0 && most == 1 && pick(random, 0, 1) == 0) return out + "?";
      if (least == most) return out + "{" + std::to_string(least) + "}";
      return out + "{ " + std::to_string(least) + " ," + (most < 0 ? "" : std::to_string(most)) +
             "}";
    }
  }
  return out;
}

// Calls only rules of higher number, but behind a character, so that none is left-recursive.
Tree random_tree(Random& random, int depth, int rule, int rules) {
  Tree out;
  const auto characters = [&](int least) {
    std::u32string text;
    for (int n = pick(random, least, 3); n > 0; --n)
      text +=
          kAlphabet[static_cast<size_t>(pick(random, 0, static_cast<int>(kAlphabet.size()) - 1))];
    return text;
  };
  switch (pick(random, 0, depth > 0 ? 8 : 3)) {
    case 0:
    case 1: out.characters = characters(0); break;
    case 2:
      out.kind = Tree::kClass;
      out.characters = characters(1);
      out.is_inverted = pick(random, 0, 1) == 0;
      break;
    case 3: out.kind = Tree::kAny; break;
    case 4:
    case 5:
      out.kind = Tree::kSequence;
      for (int n = pick(random, 0, 3); n > 0; --n)
        out.parts.push_back(random_tree(random, depth - 1, rule, rules));
      break;
    case 6:
      out.kind = Tree::kWays;
      for (int n = pick(random, 2, 3); n > 0; --n)
        out.parts.push_back(random_tree(random, depth - 1, rule, rules));
      break;
    case 7:
      out.kind = Tree::kTimes;
      out.parts.push_back(random_tree(random, depth - 1, rule, rules));
      out.least = pick(random, 0, 2);
      out.most = pick(random, 0, 1) == 0 ? -1 : out.least + pick(random, 0, 2);
      break;
    default: {
      // Any rule behind a character, a later one anywhere; and a way that has none of it.
      Tree call, letter, both;
      call.kind = Tree::kRule;
      call.rule = pick(random, 0, rules - 1);
      letter.characters = kAlphabet.substr(static_cast<size_t>(pick(random, 0, 2)), 1);
      both.kind = Tree::kSequence;
      if (call.rule <= rule || pick(random, 0, 1) == 0) both.parts.push_back(letter);
      both.parts.push_back(call);
      out.kind = Tree::kWays;
      out.parts = {both, letter};
    }
  }
  return out;
}

struct RandomGrammar {
  std::vector<Tree> rules;
  std::string text;

  explicit RandomGrammar(Random& random) {
    const int count = pick(random, 1, 4);
    for (int rule = 0; rule < count; ++rule) rules.push_back(random_tree(random, 3, rule, count));
    std::vector<int> order(rules.size());
    for (int rule = 0; rule < count; ++rule) order[static_cast<size_t>(rule)] = rule;
    std::shuffle(order.begin(), order.end(), random);
    for (const int rule : order) {
      const std::string name = rule == 0 ? "root" : "r-" + std::to_string(rule);
      const std::string body = written(rules[static_cast<size_t>(rule)], false, random);
      text += name + (pick(random, 0, 1) == 0 ? " ::= " : "::=\n\t") + body +
              (pick(random, 0, 1) == 0 ? "\n" : " # end\r\n\n");
    }
  }
  bool matches(const std::u32string& of) const {
    return ends_of(rules[0], rules, of, 0).contains(of.size());
  }
};

TEST(Gbnf, ReadsWhatAMatcherOfTheTreeMatches) {
  Random random(1);
  int matched = 0, texts = 0;
  for (int round = 0; round < 400; ++round) {
    const RandomGrammar grammar(random);
    SCOPED_TRACE(grammar.text);
    Automaton automaton = automaton_of(grammar.text);
    for (int i = 0; i < 60; ++i) {
      std::u32string text;
      for (int n = pick(random, 0, 6); n > 0; --n)
        text += kAlphabet[static_cast<size_t>(
            pick(random, 0, i % 2 == 0 ? 2 : static_cast<int>(kAlphabet.size()) - 1))];
      const bool expected = grammar.matches(text);
      ASSERT_EQ(matches(automaton, utf8(text)), expected) << utf8(text);
      matched += expected;
      ++texts;
    }
  }
  EXPECT_GT(matched, texts / 20);
}

// What a model of chance says under the guide is a text of the grammar, token by token.
TEST(Gbnf, EveryAnswerOfARandomModelIsParsed) {
  Random random(2);
  std::vector<std::string> tokens{"<pad>", "<s>", "</s>", "ab",   "c\"", "\\]",      "^-",
                                  "\n ",   "é",   "\xC3", "\xA9", "😀",   "\xF0\x9F", "\x98\x80"};
  for (const char32_t c : kAlphabet)
    if (c < 0x80) tokens.emplace_back(1, static_cast<char>(c));
  // Single bytes, so that every character that has begun can be ended.
  for (int byte = 0x80; byte < 0x100; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const testing::ListTokenizer tokenizer(tokens, {0, 1, 2});
  int ended = 0;
  for (int round = 0; round < 300; ++round) {
    const RandomGrammar grammar(random);
    SCOPED_TRACE(grammar.text);
    GuideMaker maker(tokenizer, {2});
    const auto guide = maker.make({sampling::GuideKind::kGrammar, grammar.text, {}});
    sampling::SamplingParams params;
    params.seed = static_cast<uint64_t>(round);
    const sampling::Sampler sampler(params, {2});
    sampling::Workspace workspace;
    std::vector<float> logits(tokens.size());
    std::vector<int32_t> output;
    auto state = guide->start();
    while (output.size() < 14 && !guide->is_complete(state)) {
      for (float& logit : logits) logit = std::uniform_real_distribution<float>(-3, 3)(random);
      logits[2] += 5;  // ends come
      output.push_back(sampler.pick(logits, {{}, output, guide->allowed(state)}, workspace).token);
      state = guide->after(state, output.back());
    }
    if (!guide->is_complete(state)) continue;
    ++ended;
    const std::string bytes = tokenizer.decode(output, text::SkipSpecial::kYes);
    std::string_view rest = bytes;
    std::u32string text;
    ASSERT_FALSE(text::first_invalid_utf8(rest)) << bytes;
    while (!rest.empty()) text += static_cast<char32_t>(text::take_character(rest));
    EXPECT_TRUE(grammar.matches(text)) << bytes;
  }
  EXPECT_GT(ended, 150);
}

TEST(Gbnf, TheExamplesOfTheirReadmeAndTheLike) {
  Automaton list = automaton_of(R"gbnf(# a list
root ::= ("- " item)+
item ::= [^\n]+ "\n"
)gbnf");
  EXPECT_TRUE(matches(list, "- a\n- b [x]\n"));
  EXPECT_FALSE(matches(list, "- a\n- b"));
  Automaton arithmetic = automaton_of(R"gbnf(root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
unreached ::= "so what" ident
)gbnf");
  EXPECT_TRUE(matches(arithmetic, "(a1 +22)*b =\n c\n"));
  EXPECT_FALSE(matches(arithmetic, "(a1 +22*b = c\n"));
  Automaton json = automaton_of(R"gbnf(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws (value ("," ws value)*)? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf");
  EXPECT_TRUE(matches(json, R"({"a": [1, -2.5e7, "x\u00e9\n"], "b":{"c": null}})"));
  EXPECT_FALSE(matches(json, R"({"a": [1, ]})"));
}

TEST(Gbnf, RecursesAsDeepAsCallsGoAndAtTheEndWithoutBounds) {
  Automaton nested = automaton_of("root ::= \"(\" root \")\" | \"x\"");
  EXPECT_TRUE(matches(nested, std::string(200, '(') + "x" + std::string(200, ')')));
  EXPECT_FALSE(matches(nested, "((x)"));
  Automaton tail = automaton_of("root ::= \"a\" root | \"b\"");
  EXPECT_TRUE(matches(tail, std::string(20'000, 'a') + "b"));
  Automaton empty = automaton_of("root ::= \"\"");
  EXPECT_TRUE(matches(empty, ""));
  EXPECT_FALSE(matches(empty, "a"));
}

std::string refusal(std::string_view text) {
  try {
    automaton_of(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    return error.text();
  }
  ADD_FAILURE() << "taken: " << text;
  return {};
}

TEST(Gbnf, RefusesWithLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "\"root\", which is what the text has to be at line 1, column 1"},
      {"a ::= \"x\"\n", "no rule \"root\""},
      {"root ::= b\n", "\"b\", which no rule defines at line 1, column 10"},
      {"root ::= \"x\"\nother ::= (\"é\" missing)",
       "\"missing\", which no rule defines at line 2, column 16"},
      {"root ::= \"x\n\"", "closing quote at line 1, column 10"},
      {"root ::= [ab\n]", "class without its \"]\" at line 1, column 10"},
      {"root ::= []", "class without characters at line 1, column 10"},
      {"root ::= [b-a]", "wrong way round at line 1, column 11"},
      {"root ::= [\\ud800]", "no character at line 1, column 11"},
      {"root ::= \"\\U00110000\"", "no character at line 1, column 11"},
      {"root ::= \"\\xg0\"", "hexadecimal digits at line 1, column 11"},
      {"root ::= \"\\q\"", "is not escaped at line 1, column 11"},
      {"root ::= (\"a\"\n", "group without its \")\" at line 1, column 10"},
      {"root ::= \"a\")", "goes on with no rule at line 1, column 13"},
      {"root ::= *", "goes on with no rule at line 1, column 10"},
      {"root ::= \"a\"**", "two repetitions in a row at line 1, column 14"},
      {"root ::= \"a\"{}", "without its number at line 1, column 14"},
      {"root ::= \"a\"{3,2}", "wrong way round at line 1, column 13"},
      {"root ::= \"a\"{2", "without its \"}\" at line 1, column 13"},
      {"root ::= \"a\"{99999999999}", "more than 10000 repetitions"},
      {"root ::= \"a\" b ::= \"c\"", "goes on with no rule at line 1, column 14"},
      {"root = \"a\"", "no \"::=\" behind the name that begins a line at line 1, column 6"},
      {"root ::= \"a\"\n  \"b\"", "no name where a rule begins at line 2, column 3"},
      {"root ::= \"a\"\nroot ::= \"b\"", "a second rule \"root\" at line 2, column 1"},
      {"root ::= <think>", "a token"},
      {"root ::= root \"a\" | \"b\"",
       "\"root\" called again before it has read anything at line 1, column 10"},
      {"root ::= \"x\" a\na ::= b? c\nb ::= \"y\"\nc ::= \"\" d\nd ::= (a \"z\")* \"w\"",
       "called again before it has read anything at line 5, column 8"},
      {"root ::= \"a\" root", "the rule \"root\", no text of which has an end at line 1, column 1"},
      {"root ::= \"x\" | a\na ::= \"y\" b\nb ::= a \"z\"", "has an end at line 2, column 1"},
      {"root ::= \"\xff\"", "not UTF-8 at line 1, column 11"}};
  for (const auto& [text, words] : cases)
    EXPECT_NE(refusal(text).find(words), std::string::npos) << text << ": " << refusal(text);
  EXPECT_NE(refusal("root ::= " + std::string(300, '(') + "\"a\"" + std::string(300, ')'))
                .find("too deep"),
            std::string::npos);
  std::string many = "root ::= \"x\"\n";
  for (int i = 0; i < 2100; ++i) many += "r" + std::to_string(i) + " ::= \"x\"\n";
  EXPECT_NE(refusal(many).find("2000 rules"), std::string::npos);
}

// Each of these took as long as it has repetitions, or nearly.
TEST(Gbnf, RepetitionsInEachOtherAreBounded) {
  for (const char* what : {"\"x\"", "\"\"", "\"x\"{0}", "(\"\" | \"\")"}) {
    const std::string text = std::string("root ::= (((") + what + "){10000}){10000}){10000}";
    EXPECT_NE(refusal(text).find("too large"), std::string::npos) << what;
  }
  for (const char* pattern : {"(((x){10000}){10000}){10000}", "(((){10000}){10000}){10000}",
                              "(((x{0}){10000}){10000}){10000}", "(((|){10000}){10000}){10000}"})
    try {
      automaton_of_regex(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_NE(error.text().find("too large"), std::string::npos) << error.text();
    }
}

// Chains of rules in the worst order, and one rule that refers to all.
TEST(Gbnf, ManyRulesAreLookedAtOnce) {
  std::string text = "root ::= \"x\"";
  for (int i = 0; i < 1900; ++i) text += " | r" + std::to_string(i);
  text += "\n";
  for (int i = 0; i < 1900; ++i)
    text += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  text += "r1900 ::= \"y\"?\n";
  Automaton automaton = automaton_of(text);
  EXPECT_TRUE(matches(automaton, "x"));
}

}  // namespace
}  // namespace sluice::guide
