// Words that speak of what a value is not, or is only at times, as guides hold them.
#include "src/guide/schema_rewrite.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/guide/json_schema.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

struct Held {
  const char* schema;
  std::vector<const char*> allowed, refused;
};

const Held kHeld[] = {
    {R"({"not":{"type":["number","null"]}})", {"true", R"("a")", "[1]"}, {"1", "null"}},
    {R"({"type":["string","null"],"not":{"type":"null"}})", {R"("a")"}, {"null"}},
    {R"({"enum":[1,2,"a"],"not":{"type":"integer"}})", {R"("a")"}, {"1", "2"}},
    {R"({"enum":["a","b","c"],"not":{"enum":["b","d"]}})", {R"("a")", R"("c")"}, {R"("b")"}},
    {R"({"type":"string","not":{"const":""}})", {R"("a")"}, {R"("")"}},
    {R"({"type":"string","not":{"const":7}})", {R"("")"}, {"7"}},
    {R"({"type":"boolean","not":{"const":true}})", {"false"}, {"true"}},
    {R"({"type":"string","not":{"not":{"enum":["x"]}}})", {R"("x")"}, {R"("y")"}},
    {R"({"enum":[1,null,"a"],"not":{"anyOf":[{"type":"null"},{"const":"a"}]}})", {"1"}, {"null"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"not":{"required":["a","b"]}})",
     {"{}", R"({"a":1})", R"({"b":1})"},
     {R"({"a":1,"b":1})"}},
    {R"({"type":"object","properties":{"k":{"enum":["a","b"]},"x":{"type":"integer"}},"required":["k"],"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["x"]},"else":{"properties":{"x":false}}})",
     {R"({"k":"a","x":1})", R"({"k":"b"})"},
     {R"({"k":"a"})", R"({"k":"b","x":1})", "{}"}},
    {R"({"if":true,"then":{"type":"null"}})", {"null"}, {"1"}},
    {R"({"if":false,"then":{"type":"null"},"else":{"type":"boolean"}})", {"true"}, {"null"}},
    {R"({"type":"array","items":{"enum":["a","b","c"]},"contains":{"const":"b"}})",
     {R"(["b"])", R"(["a","b"])", R"(["a","c","b","a"])"},
     {"[]", R"(["a"])", R"(["a","c"])"}},
    {R"({"type":"array","items":{"enum":["a","b"]},"uniqueItems":true,"minItems":1})",
     {R"(["a"])", R"(["b","a"])"},
     {"[]", R"(["a","a"])", R"(["c"])"}},
    {R"({"type":"array","uniqueItems":true,"maxItems":1,"items":{"type":"integer"}})",
     {"[]", "[5]"},
     {"[5,5]"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"dependentSchemas":{"a":{"required":["b"]}}})",
     {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
     {R"({"a":1})"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"dependencies":{"a":["b"]}})",
     {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
     {R"({"a":1})"}},
};

TEST(SchemaRewrite, HoldsWhatCanBeSaidOtherwise) {
  for (const Held& one : kHeld) {
    SCOPED_TRACE(one.schema);
    Grammar grammar;
    const ExprPtr start = schema_grammar(one.schema, grammar, nullptr);
    Automaton automaton(grammar.build(start));
    for (const char* text : one.allowed) EXPECT_TRUE(matches(automaton, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(matches(automaton, text)) << text;
  }
}

TEST(SchemaRewrite, LeavesWhatItCanNotSay) {
  using Json = nlohmann::ordered_json;
  for (const char* schema :
       {R"({"type":"string"})", R"({"not":{"minLength":3}})",
        R"({"type":"number","not":{"type":"integer"}})", R"({"type":"string","not":{"const":"a"}})",
        R"({"type":"array","uniqueItems":true})",
        R"({"items":{"enum":[1,2,3,4,5]},"uniqueItems":true})", R"({"uniqueItems":false})",
        R"({"contains":{},"minContains":2})", R"({"contains":{},"maxContains":2})",
        R"({"if":{"type":"string"}})", R"({"if":{"minLength":2},"then":false})",
        R"({"dependentSchemas":{}})", R"({"dependencies":7})", R"({"not":7})",
        R"({"if":7,"then":8})"})
    EXPECT_FALSE(said_plainly(Json::parse(schema))) << schema;
}

// Conditions within conditions multiply: so many are taken, and not more.
TEST(SchemaRewrite, EndsWhereWaysMultiply) {
  nlohmann::ordered_json schema{{"contains", {{"type", "null"}}}};
  for (int i = 0; i < 12; ++i)
    schema = {{"type", "array"}, {"contains", schema}, {"items", schema}};
  Grammar grammar;
  EXPECT_THROW(schema_grammar(schema.dump(), grammar, nullptr), Error);
}

// Values that no type, or no other word, leaves.
TEST(SchemaRewrite, NothingIsNothing) {
  for (const char* schema :
       {R"({"not":{}})", R"({"enum":["a"],"not":{"const":"a"}})", R"({"type":"string","const":5})",
        R"({"const":1,"enum":[2]})", R"({"type":"null","not":{"type":"null"}})",
        R"({"type":"array","items":{"type":"integer"},"contains":{"type":"null"}})"}) {
    Grammar grammar;
    EXPECT_THROW(schema_grammar(schema, grammar, nullptr), Error) << schema;
  }
}

}  // namespace
}  // namespace sluice::guide
