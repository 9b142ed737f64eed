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
  EXPECT_NE(doubled("'x'", "ns.v + ns.v").find("too much memory"), std::string::npos);
  EXPECT_NE(doubled("'x'", "ns.v ~ ns.v").find("too much memory"), std::string::npos);
  EXPECT_NE(doubled("[1]", "ns.v + ns.v").find("a list is too long"), std::string::npos);
  EXPECT_NE(doubled("[]", "ns.v + ['x' * 3000000]").find("too much memory"), std::string::npos);
  EXPECT_EQ(doubled("''", "ns.v + 'x' * 100000"), "no error");  // six megabytes
}

// Programs of a line that would take hours or gigabytes: each is an error, and takes no more memory
// than it is granted.
TEST(TemplateLimits, Bombs) {
  const std::string r = "{% set r = range(999999) %}", s = "{% set s = 'a' * 3000000 %}";
  const std::string nested =
      "{% set n = namespace(l=['a']) %}{% for i in range(64) %}{% set n.l = "
      "[n.l, n.l] %}{% endfor %}";
  std::string loops, ends;
  for (int i = 0; i < 40; ++i) {
    loops += "{% for i" + std::to_string(i) + " in r %}";
    ends += "{% endfor %}";
  }
  const std::vector<std::string> bombs = {
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) if range(99999) | sum < 0 %}{% endfor %}",
      r + loops + ends,
      "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
      s + "{{ s.replace('', s) }}",
      s + "{{ s.replace('a', 'b' * 1000) }}",
      s + "{{ range(1000) | join(s) }}",
      s + "{{ s.join(['a'] * 3) }}{{ s.join(s) }}",
      s + "{{ ('\n' * 100000) | indent(s, true, true) }}",
      s + "{{ s | list | map('upper') | map('lower') | map('title') | list }}",
      s + "{{ s.split('a') | map('trim') | unique | list }}",
      s + "{{ s.find('a' * 1500000 + 'b') }}",
      s + "{{ s.rfind('a' * 30000 + 'b' + 'a' * 30000) }}",
      s + "{{ s.count('a' * 1500000 + 'b') }}{{ ('a' * 1500000 + 'b') in s }}",
      s + "{{ s.strip('bcdefghijklmnopqrstuvwxyz' * 10000) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '%.99999f' % 1 }}",
      r + "{{ r | sort | reverse | list | sort(reverse=true) | unique | list }}",
      r + "{{ r | map('string') | sort | unique | list }}",
      r + "{{ r | tojson(indent=64) }}",
      r + "{% for i in r %}{{ r | tojson | length }}{% endfor %}",
      r + "{% for i in r %}{{ 5 in r }}{{ r.index(999998) }}{{ r == r }}{% endfor %}",
      r + "{{ r | batch(1) | list | tojson }}",
      r + "{{ r | string | string | length }}{% for i in r %}{{ r | string | length }}{% endfor %}",
      nested + "{{ n.l }}",
      nested + "{{ n.l | tojson }}",
      nested + "{{ n.l == n.l }}{{ [n.l] | unique | list }}",
      nested + "{{ [n.l, n.l] | sort }}",
      r + "{{ dict(r | batch(2)) }}",
      "{% macro f(n) %}{% set x = range(9999) | list %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) "
      "}}",
      "{% macro f(n, l) %}{% if n %}{{ f(n - 1, l + l) }}{% endif %}{{ l | length }}{% endmacro %}"
      "{{ f(100, ['a']) }}",
      "{% set ns = namespace(t='') %}{% for i in range(999999) %}{% set ns.t = ns.t ~ 'abcdefgh' "
      "%}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ['a' * 1000] "
      "%}{% endfor %}",
      "{{ ('{}' * 100000).format() }}{{ ('<' * 60000000) | e }}",
      s + "{{ s[::-1] }}{{ s | reverse | list }}{{ s | upper | list }}",
      "{{ 'a' | indent(999999999) }}{{ ('a\n' * 1000000) | indent(256) }}",
      "{% for c in 'a' * 9999999 %}{% endfor %}",
  };
  for (const std::string& bomb : bombs) EXPECT_NE(error_of(bomb), "no error") << bomb;
}

// What long conversations need is granted: a megabyte of text that is split, trimmed and joined.
TEST(TemplateLimits, LongConversationsRender) {
  List messages;
  for (int i = 0; i < 400; ++i)
    messages.push_back(Dict{{{"role", i % 2 == 0 ? "user" : "assistant"},
                             {"content", "<think>so " + std::string(3000, 'b') + "</think>\n\n" +
                                             std::string(7000, 'a') + " \n"}}});
  Dict variables;
  variables.set("messages", messages);
  const std::string text =
      Template(
          "{% set ns = namespace(roles='', last=0) %}{% for m in messages %}{% if m.role == "
          "'user' %}{% set ns.last = loop.index0 %}{% endif %}{% set ns.roles = ns.roles ~ m.role "
          "%}{% endfor %}{% for m in messages %}{% set c = m.content | trim %}{% if '</think>' in "
          "c %}{% set t = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') "
          "%}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ '<|' ~ m.role ~ "
          "'|>' ~ (t if loop.index0 > ns.last else '') ~ c[:10] ~ c | replace('a', 'ab') | upper "
          "}}{% endfor %}{{ messages | tojson }}")
          .render(variables);
  EXPECT_GT(text.size(), 8u << 20);
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

TEST(TemplateLimits, GroupsAreNamed) {
  Dict variables;
  variables.set("messages", List{Value(Dict{{{"role", "user"}}}), Value(Dict{{{"role", "system"}}}),
                                 Value(Dict{{{"role", "user"}}})});
  EXPECT_EQ(Template("{% for g in messages|groupby('role') %}{{ g.grouper }}{{ g.list|length }} {% "
                     "endfor %}{% for role, all in messages|groupby('role') %}{{ role }}{{ "
                     "all|length }} {% endfor %}")
                .render(variables),
            "system1 user2 system1 user2 ");
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
