// Templates that run away, print without end, nest without end or are nonsense end with an error
// that names the line.
#include <gtest/gtest.h>

#include <random>

#include "src/chat/template.h"

namespace sluice::chat {
namespace {

std::string error_of(const std::string& source, const Dict& variables = {}) {
  try {
    Template(source).render(variables);
  } catch (const TemplateError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TemplateLimits, EndlessWork) {
  EXPECT_NE(error_of("{% for a in range(100000) %}{% for b in range(100000) %}{% set x = a %}{% "
                     "endfor %}{% endfor %}")
                .find("without end"),
            std::string::npos);
  EXPECT_NE(error_of("{{ range(10 ** 12) }}").find("range is too long"), std::string::npos);
  EXPECT_NE(error_of("{{ 'x' * 10 ** 12 }}").find("too long"), std::string::npos);
  EXPECT_NE(error_of("{% set x = 'y' * 60000000 %}{{ x }}{{ x }}").find("prints without end"),
            std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("inside one another"),
            std::string::npos);
}

// A text or a list that doubles sixty times is never made, nor are many large ones.
TEST(TemplateLimits, GrowingValues) {
  const auto doubled = [](const std::string& start, const std::string& step) {
    return error_of("{% set ns = namespace(v=" + start +
                    ") %}{% for i in range(60) %}{% set ns.v = " + step + " %}{% endfor %}");
  };
  EXPECT_NE(doubled("'x'", "ns.v + ns.v").find("a text is too long"), std::string::npos);
  EXPECT_NE(doubled("'x'", "ns.v ~ ns.v").find("a text is too long"), std::string::npos);
  EXPECT_NE(doubled("[1]", "ns.v + ns.v").find("a list is too long"), std::string::npos);
  EXPECT_NE(doubled("[]", "ns.v + ['x' * 60000000]").find("too many large texts"),
            std::string::npos);
  EXPECT_EQ(doubled("''", "ns.v + 'x' * 100000"), "no error");  // six megabytes
}

TEST(TemplateLimits, DeepNesting) {
  const auto repeat = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  EXPECT_NE(
      error_of("{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}").find("levels"),
      std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}").find("levels"),
            std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("not ", 100000) + "1 }}").find("levels"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("- ", 100000) + "1 }}").find("levels"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeat(" + 1", 100000) + " }}").find("chain"), std::string::npos);
  EXPECT_NE(error_of("{{ a" + repeat(".a", 100000) + " }}").find("chain"), std::string::npos);
  EXPECT_NE(error_of("{{ a" + repeat("|e", 100000) + " }}").find("chain"), std::string::npos);
  EXPECT_NE(error_of(repeat("{% if a %}", 100000)).find("levels"), std::string::npos);
  // A value that holds itself prints something and is no JSON.
  EXPECT_EQ(error_of("{% set n = namespace() %}{% set n.n = n %}{{ n }}"), "no error");
  EXPECT_NE(
      error_of("{% set n = namespace() %}{% set n.n = n %}{{ n|tojson }}").find("holds itself"),
      std::string::npos);
}

TEST(TemplateLimits, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\nb\n{{ x.y }}").substr(0, 7), "line 3:");
  EXPECT_EQ(error_of("a\n{% if x %}\n{{ 1 + }}\n").substr(0, 7), "line 3:");
  EXPECT_EQ(error_of("{{ raise_exception('stop it') }}"), "stop it");
  EXPECT_NE(error_of("{% include 'x' %}").find("not supported"), std::string::npos);
  EXPECT_NE(error_of("{% for a in b recursive %}{% endfor %}").find("not supported"),
            std::string::npos);
}

// Random cuts and doublings of a template: an error or a text, nothing else.
TEST(TemplateLimits, Nonsense) {
  const std::string seed =
      "{%- for m in messages -%}{{ '<' ~ m['role'] | upper + \">\" }}{% if not loop.last and m.x "
      "is defined %}"
      "{{ m.x[1:-2]|tojson(indent=2) }}{%+ elif a %}{# c #}{% set ns.a = {'k': [1, 2.5e3]} %}{% "
      "endif %}"
      "{%- endfor %}{% macro q(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ q(1, b=(2, 3)) }}{% raw %}x{% "
      "endraw %}";
  std::mt19937 random(7);
  Dict variables;
  variables.set("messages", List{Value(Dict{{{"role", "user"}, {"x", "abcdef"}}})});
  int texts = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string source = seed;
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const size_t at = random() % source.size(), length = random() % 12;
      switch (random() % 3) {
        case 0: source.erase(at, length); break;
        case 1: source.insert(at, source.substr(random() % source.size(), length)); break;
        default: source[at] = "{}%#-+|.,:()[]'\"~ \n9ax"[random() % 22];
      }
      if (source.empty()) source = "{";
    }
    try {
      Template(source).render(variables);
      ++texts;
    } catch (const TemplateError&) {  // the expected outcome of most
    }
  }
  EXPECT_GT(texts, 50);
}

}  // namespace
}  // namespace sluice::chat
