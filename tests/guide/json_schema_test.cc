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
      {R"({"type":"object","patternProperties":{}})", "patternProperties"},
      {R"({"not":{"type":"null"}})", "\"not\""},
      {R"({"type":"integer","multipleOf":3})", "multipleOf"},
      {R"({"type":"strnig"})", "strnig"},
      {R"({"properties":{"a":{"type":"array","items":{"if":{}}}}})", "#/properties/a/items"},
      {R"({"$ref":"#/$defs/gone"})", "leads nowhere"},
      {R"({"$ref":"https://elsewhere"})", "leaves the schema"},
      {R"({"enum":[]})", "enum"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "maxItems"},
      {R"({"type":"array","items":false,"minItems":1})", "minItems"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "from 5 to 4"},
      {R"({"type":"number","exclusiveMinimum":0})", "inclusive"},
      {R"~({"type":"string","pattern":"(?=a)"})~", "look-ahead"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "pattern"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "\"type\""},
      {R"({"allOf":[{"$ref":"#"}]})", "itself"},
      {"false", "nothing"},
      {"[]", "no object"},
      {"{", "not valid JSON"},
      {R"({"type":"string","maxLength":100000})", "maxLength"},
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
