#include "src/guide/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "src/base/error.h"
#include "src/guide/json_grammar.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> allowed, refused;
};

const Case kCases[] = {
    {R"({"type":"string"})",
     {R"("")", R"("a b")", R"("\u00e9\n\"")", R"("ü😀")"},
     {"", "\"", "a", "\"a\nb\"", R"("\ud800")", R"("\x")", "\"\xFF\""}},
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("ü😀a")", R"("\n\n")"},
     {R"("a")", R"("abcd")"}},
    {R"({"type":"integer","minimum":3,"exclusiveMaximum":12})",
     {"3", "11"},
     {"2", "12", "3.0", "-4"}},
    {R"({"type":"number"})", {"1", "-0.5", "2e10"}, {"1.", "true"}},
    {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
    {R"({"type":["integer","null"]})", {"null", "7"}, {"nul", "\"7\""}},
    {R"({"enum":["red","green",3,null,{"a":[1]}]})",
     {R"("red")", "3", "null", R"({"a":[1]})"},
     {"\"blue\"", "4"}},
    {R"({"const":"x\"y"})", {R"("x\"y")"}, {R"("xy")"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false})",
     {R"({"b":true})", R"({"a": 1, "b": false})",
      "{\n  \"a\": 1,\n  \"b\": true,\n  \"c\": null\n}", R"({"b":true,"c":null})"},
     {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,})", R"({"b":true,"d":1})",
      R"({,"b":true})"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}}})",
     {"{}", R"({"a":1})"},
     {R"({"z":1})"}},
    {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
     {"{}", R"({"ab":1})", R"({"a":"x"})", R"({"abc":"x","":"y"})", R"({"ab":1,"b":"z","ac":"w"})"},
     {R"({"ab":"x"})", R"({"a":1})", R"({"b":"z","ab":1})"}},
    {R"({"type":"object"})", {"{}", R"({"x":[1,{"y":null}]})"}, {"[]", "{"}},
    {R"({"type":"object","additionalProperties":{"type":"integer"}})",
     {R"({"x":1,"y":2})"},
     {R"({"x":"1"})"}},
    {R"({"required":["k"]})", {R"({"k":[]})"}, {"{}"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1, 2,3]"},
     {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":2})",
     {"[1,2]", "[1,2,3,4,5]"},
     {"[1]"}},
    {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
    {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false,"minItems":1})",
     {R"(["a"])", R"(["a",1])"},
     {"[]", R"(["a",1,2])", "[1]"}},
    {R"({"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"},"maxItems":3})",
     {"[]", R"(["a"])", R"(["a",1,2])"},
     {R"(["a",1,2,3])", R"(["a","b"])"}},
    {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"boolean"}}]})",
     {"5", "[true]"},
     {"[5]", "true"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"anyOf":[{"properties":{"b":{"const":1}},"required":["b"]},{"properties":{"c":{"const":2}},"required":["c"]}]})",
     {R"({"a":5,"b":1})", R"({"a":5,"c":2})"},
     {R"({"a":5})", R"({"a":5,"c":1})"}},
    {R"({"allOf":[{"$ref":"#/$defs/base"},{"properties":{"y":{"type":"integer"}},"required":["y"]}],"$defs":{"base":{"type":"object","properties":{"x":{"type":"integer","minimum":1}},"required":["x"]}}})",
     {R"({"x":1,"y":2})"},
     {R"({"x":1})", R"({"y":2})", R"({"x":0,"y":2})"}},
    {R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"})",
     {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
     {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
    {R"({"type":"string","pattern":"^[A-Z]\"\\d{2}"})",
     {R"("A\"12")", R"("Z\"99 more")"},
     {R"("a\"12")", R"("A12")"}},
    {R"({"type":"string","format":"date"})",
     {R"("2026-11-22")"},
     {R"("2026-13-01")", R"("26-1-1")"}},
    {R"({"type":"string","format":"date-time"})",
     {R"("2026-11-22T10:00:00Z")", R"("2026-11-22T10:00:00.5+02:00")"},
     {R"("2026-11-22")", R"("2026-11-22T25:00:00Z")"}},
    {R"({"type":"string","format":"uuid"})",
     {R"("123e4567-e89b-12d3-a456-426614174000")"},
     {R"("123")"}},
    {R"({"type":"string","format":"ipv4"})",
     {R"("192.168.0.1")"},
     {R"("256.1.1.1")", R"("1.2.3")"}},
    {R"({"type":"string","nullable":true})", {"null", R"("x")"}, {"1"}},
    {R"({})", {"1", "null", R"({"a":[1,"b"]})"}, {"{a}", "nil"}},
    {"true", {"[]"}, {"x"}},
    {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":4})",
     {R"("ab")", R"("abcd")"},
     {R"("a")", R"("abcde")", R"("AB")"}},
    {R"({"type":"string","pattern":"^[a-z][a-z0-9-]*$","maxLength":3})",
     {R"("a")", R"("a-9")"},
     {R"("")", R"("a-9a")", R"("9")"}},
    {R"({"type":"string","pattern":"^\\d{3}$|^x+$","minLength":3,"maxLength":5})",
     {R"("123")", R"("xxxxx")"},
     {R"("xx")", R"("xxxxxx")", R"("1234")"}},
    {R"({"type":"string","format":"date","maxLength":10})", {R"("2026-11-22")"}, {R"("a")"}},
    {R"({"type":"string","minLength":300,"maxLength":70000})", {}, {R"("")", R"("abc")"}},
    {R"({"type":"number","exclusiveMinimum":0,"maximum":1.5})",
     {"0.001", "1", "1.50", "1.0"},
     {"0", "0.0", "-0", "1.51", "2", "-1"}},
    {R"({"type":"number","minimum":5,"exclusiveMinimum":true})", {"5.1", "6"}, {"5", "5.0"}},
    {R"({"type":"number","multipleOf":0.01,"minimum":0})", {"0", "1.25", "3.1"}, {"1.255", "-1"}},
    {R"({"type":"number","multipleOf":5})", {"0", "-15", "20"}, {"7", "5.0"}},
    {R"({"type":"integer","minimum":0.5,"maximum":3.5})", {"1", "3"}, {"0", "4"}},
    {R"({"type":"integer","exclusiveMinimum":0,"multipleOf":3})", {"3", "12"}, {"0", "-3", "4"}},
    {R"({"type":"integer","minimum":-9007199254740991,"maximum":9223372036854775807})",
     {"-5", "123456789012345"},
     {"1.5"}},
    {R"({"type":"array","items":[{"type":"string"},{"type":"integer"}],"additionalItems":false})",
     {"[]", R"(["a"])", R"(["a",1])"},
     {R"(["a",1,2])", "[1]"}},
    {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":100000})",
     {"[true]", "[true,false]"},
     {"[]", "[1]"}},
    {R"({"type":"object","minProperties":1,"maxProperties":2})",
     {R"({"a":1})", R"({"a":1,"b":2})"},
     {"{}", R"({"a":1,"b":2,"c":3})"}},
    {R"({"type":"object","patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false})",
     {"{}", R"({"x-a":1,"x-":2})"},
     {R"({"a":1})", R"({"x-a":"b"})"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]{1,3}$"},"additionalProperties":{"type":"null"}})",
     {"{}", R"({"abc":null})"},
     {R"({"abcd":null})", R"({"A":null})"}},
    {R"({"properties":{"a":{"type":"null"},"b":{"type":"null"}},"dependentRequired":{"a":["b"]}})",
     {R"({"a":null,"b":null})", R"({"b":null})"},
     {R"({"a":null})"}},
    {R"({"properties":{"a":{"type":"null"},"z":false},"unevaluatedProperties":false})",
     {"{}", R"({"a":null})"},
     {R"({"z":1})", R"({"y":1})"}},
    {R"({"properties":{"a":{"$ref":"#leaf"}},"required":["a"],"$defs":{"l":{"$anchor":"leaf","type":"null"}}})",
     {R"({"a":null})"},
     {R"({"a":1})"}},
    {R"({"anyOf":[false,{"type":"null"}]})", {"null"}, {"1"}},
    {R"({"allOf":[{"properties":{"a":{"type":"null"}},"additionalProperties":false}],"properties":{"b":{"type":"null"}}})",
     {"{}", R"({"a":null})"},
     {R"({"b":null})"}},
    {R"({"allOf":[{"additionalProperties":{"type":"null"}}],"properties":{"b":{}}})",
     {"{}", R"({"b":null})"},
     {R"({"b":1})"}},
    {R"({"oneOf":[true,false]})", {"1"}, {}},
    {R"({"type":"array","prefixItems":[{"type":"null"}],"unevaluatedItems":false})",
     {"[]", "[null]"},
     {"[null,null]"}},
    {R"({"type":"string","minLength":2.0})", {R"("ab")"}, {R"("a")"}},
    {R"({"$ref":"#/$defs/a%25b","$defs":{"a%b":{"type":"null"}}})", {"null"}, {"1"}},
    {R"({"type":"null","propertyOrdering":["a"],"markdownDescription":"x","discriminator":{"propertyName":"k"},"ui:widget":"w"})",
     {"null"},
     {"1"}},
};

TEST(JsonSchema, AllowsWhatItSaysAndNothingElse) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.schema);
    Automaton automaton = automaton_of_schema(one.schema);
    for (const char* text : one.allowed) EXPECT_TRUE(matches(automaton, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(matches(automaton, text)) << text;
  }
}

TEST(JsonSchema, RefusesByNameWhatItCanNotKeepTo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "patternProperties"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"$dynamicRef":"#a"})", "$dynamicRef"},
      {R"({"type":"string","not":{"const":"a"}})", "\"not\""},
      {R"({"type":"integer","multipleOf":3001})", "multipleOf"},
      {R"({"type":"integer","multipleOf":7,"maximum":5})", "multipleOf"},
      {R"({"type":"strnig"})", "strnig"},
      {R"({"properties":{"a":{"type":"array","items":{"if":{"minLength":3},"then":{"type":"string"}}}}})",
       "#/properties/a/items"},
      {R"({"$ref":"#/$defs/gone"})", "leads nowhere"},
      {R"({"$ref":"https://elsewhere"})", "leaves the schema"},
      {R"({"enum":[]})", "enum"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "maxItems"},
      {R"({"type":"array","items":false,"minItems":1})", "minItems"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "from 5 to 4"},
      {R"({"type":"number","exclusiveMinimum":1,"maximum":1})", "no number"},
      {R"~({"type":"string","pattern":"(?=a)"})~", "look-ahead"},
      {R"({"type":"string","pattern":"^a{5}$","maxLength":3})", "pattern"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "\"type\""},
      {R"({"allOf":[{"$ref":"#"}]})", "itself"},
      {"false", "nothing"},
      {R"({"required":["a"],"additionalProperties":false})", "nothing"},
      {R"({"oneOf":[true,true]})", "nothing"},
      {R"({"oneOf":[true,{"type":"null"}]})", "oneOf"},
      {R"({"allOf":[{"prefixItems":[true]}],"items":{"minimum":5}})", "prefixItems"},
      {R"({"allOf":[{"unevaluatedProperties":false}],"properties":{"a":{}}})",
       "unevaluatedProperties"},
      {"[]", "no object"},
      {"{", "not valid JSON"},
      {R"({"type":"string","maxLength":10000000})", "maxLength"},
  };
  for (const auto& [schema, wanted] : cases) {
    try {
      automaton_of_schema(schema);
      ADD_FAILURE() << schema << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      EXPECT_NE(error.text().find(wanted), std::string::npos) << schema << ": " << error.text();
    }
  }
  std::string deep;
  for (int i = 0; i < 300; ++i) deep += R"({"type":"array","items":)";
  deep += "true" + std::string(300, '}');
  EXPECT_THROW(automaton_of_schema(deep), Error);
}

// What guides don't know of a schema is left out where it stands, and told; names, types and what
// is required stay.
TEST(JsonSchema, RelaxesOnlyWhatItDoesNotKnow) {
  struct Relaxing {
    const char* schema;
    std::vector<const char*> allowed, refused, told;
  };
  const Relaxing cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"},"uniqueItems":true}},"required":["a"],"additionalProperties":false})",
       {R"({"a":1})", R"({"a":1,"tags":["x","x"]})"},
       {"{}", R"({"a":"1"})", R"({"a":1,"tags":[1]})", R"({"b":1})"},
       {"#/properties/tags: uniqueItems"}},
      {R"~({"type":"object","properties":{"a":{"type":"string","pattern":"(?=x)","maxLength":2}},"required":["a"]})~",
       {R"({"a":"yz"})"},
       {R"({"a":1})", R"({"a":"xyz"})", "{}"},
       {"#/properties/a: pattern"}},
      {R"({"type":"object","properties":{"n":{"type":"integer","multipleOf":70000}},"required":["n"]})",
       {R"({"n":5})"},
       {R"({"n":"5"})", R"({"n":5.5})"},
       {"#/properties/n: multipleOf"}},
      {R"({"type":"object","properties":{"k":{"enum":["a","b"]}},"required":["k"],"if":{"properties":{"k":{"pattern":"^a"}}},"then":{"required":["x"]}})",
       {R"({"k":"a"})", R"({"k":"b"})"},
       {R"({"k":"c"})", "{}"},
       {"#: if", "#: then"}},
      {R"({"type":"object","properties":{"r":{"type":"object","$ref":"https://elsewhere"}},"required":["r"]})",
       {R"({"r":{"x":1}})"},
       {R"({"r":1})"},
       {"leaves the schema"}},
      {R"({"type":"string","not":{"const":"a"}})", {R"("a")"}, {"1"}, {"#: not"}},
      {R"({"type":"array","contains":{"minimum":5},"minContains":2,"items":{"type":"integer"}})",
       {"[1]"},
       {"[\"a\"]"},
       {"contains"}},
  };
  for (const Relaxing& one : cases) {
    SCOPED_TRACE(one.schema);
    Grammar grammar;
    Relaxed relaxed;
    const ExprPtr start = schema_grammar(one.schema, grammar, &relaxed);
    Automaton automaton(grammar.build(start));
    for (const char* text : one.allowed) EXPECT_TRUE(matches(automaton, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(matches(automaton, text)) << text;
    std::string told;
    for (const std::string& line : relaxed) told += line + "\n";
    for (const char* text : one.told) EXPECT_NE(told.find(text), std::string::npos) << told;
    EXPECT_THROW(automaton_of_schema(one.schema), Error) << "without leave it is refused";
  }
  Grammar grammar;
  Relaxed relaxed;
  EXPECT_THROW(schema_grammar(R"({"properties":{"a":false},"required":["a"]})", grammar, &relaxed),
               Error)
      << "nothing can be right";
}

// Blocks of 64, 4096, ...: the same lengths as one by one.
TEST(Grammar, ManyRepetitionsAreAsMany) {
  for (const auto& [least, most] : std::vector<std::pair<int, int>>{
           {0, 300}, {300, 300}, {257, 4160}, {4096, 4097}, {100, 5000}, {400, -1}, {0, 257}}) {
    Grammar grammar;
    Automaton automaton(grammar.build(grammar.repeat_many(literal("ab"), least, most)));
    auto state = automaton.start();
    for (int count = 0; count <= 5100; ++count) {
      const bool is_within = count >= least && (most < 0 || count <= most);
      ASSERT_EQ(state != Automaton::kDead && automaton.is_accepting(state), is_within)
          << count << " of " << least << ".." << most;
      if (most >= 0 && count > most) break;
      state = automaton.after(state, 'a');
      if (state != Automaton::kDead) state = automaton.after(state, 'b');
      if (state == Automaton::kDead) {
        ASSERT_EQ(count, most);
        break;
      }
    }
  }
  Grammar grammar;
  EXPECT_LT(grammar.build(grammar.repeat_many(literal("ab"), 10, 1'000'000)).nodes.size(), 3000u);
}

// Random walks: whatever is written byte by byte and may end is JSON of that shape.
TEST(JsonSchema, WhatMayEndIsJson) {
  std::mt19937 random(11);
  int ended = 0;
  for (const Case& one : kCases) {
    Automaton automaton = automaton_of_schema(one.schema);
    for (int walk = 0; walk < 20; ++walk) {
      std::string text;
      auto state = automaton.start();
      for (int step = 0; step < 400 && !automaton.is_final(state); ++step) {
        if (automaton.is_accepting(state) && step % 3 == 0) break;
        // Closing brackets and quotes more often, so that walks end.
        std::vector<uint8_t> ways;
        for (int byte = 0; byte < 256; ++byte)
          if (automaton.after(state, static_cast<uint8_t>(byte)) != Automaton::kDead)
            for (int times = 0; times < (byte == '"' || byte == '}' || byte == ']' ? 60 : 1);
                 ++times)
              ways.push_back(static_cast<uint8_t>(byte));
        ASSERT_FALSE(ways.empty()) << "a dead end behind " << text;
        const uint8_t byte =
            ways[std::uniform_int_distribution<size_t>(0, ways.size() - 1)(random)];
        text += static_cast<char>(byte);
        state = automaton.after(state, byte);
      }
      if (!automaton.is_accepting(state)) continue;
      ++ended;
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    }
  }
  EXPECT_GT(ended, 300);
}

TEST(JsonGrammar, AnyObjectIsWhatAParserTakes) {
  Grammar grammar;
  const JsonGrammar json(grammar);
  Automaton automaton(grammar.build(json.any_object()));
  for (const char* text :
       {"{}", R"({"a": {"b": [1, 2.5e3, true, null, "x\u0041"]}, "c": ""})", "{\n\t\"a\": []\n}"}) {
    EXPECT_TRUE(nlohmann::json::accept(text));
    EXPECT_TRUE(matches(automaton, text)) << text;
  }
  for (const char* text : {"[]", "{\"a\"}", "{\"a\":1,}", "{'a':1}", "{\"a\":01}", "1"})
    EXPECT_FALSE(matches(automaton, text)) << text;
  const std::string blanks = "{" + std::string(1000, ' ');
  EXPECT_EQ(read(automaton, blanks), Automaton::kDead) << "no white space without end";
}

}  // namespace
}  // namespace sluice::guide
