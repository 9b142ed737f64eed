// Calls of tools: free text up to the trigger, then nothing but what the format and the tools'
// schemas allow; and all that a guide allows is read as calls again.
#include "src/guide/call_guide.h"

#include <gtest/gtest.h>

#include <random>

#include "src/base/error.h"
#include "src/chat/message_reader.h"
#include "src/guide/guide_maker.h"
#include "tests/guide/byte_tokenizer.h"
#include "tests/guide/reading.h"

namespace sluice::guide {
namespace {

using chat::ToolGuideUse;
using nlohmann::ordered_json;

constexpr int32_t kEnd = 2;

// Bytes, JSON's usual pieces, and each mark of the formats, as one token that is special or not.
testing::ListTokenizer tokenizer_with(bool marks_are_special) {
  std::vector<std::string> tokens;
  const auto plain = testing::json_tokenizer(118);
  for (int32_t id = 0; id < plain.vocab_size(); ++id) tokens.push_back(plain.token_bytes(id));
  for (int byte = 0x80; byte < 0xF5; ++byte)
    tokens.push_back(std::string(1, static_cast<char>(byte)));
  std::set<int32_t> special{0, 1, 2};
  for (const char* mark : {"<tool_call>",
                           "</tool_call>",
                           "<|channel|>",
                           "<|constrain|>",
                           "<|message|>",
                           "<|call|>",
                           "<|start|>",
                           "<arg_key>",
                           "</arg_key>",
                           "<arg_value>",
                           "</arg_value>",
                           "<function=",
                           "<parameter=",
                           "</parameter>",
                           "</function>",
                           "[TOOL_CALLS]",
                           "[ARGS]",
                           "<|tool_call|>",
                           "<|tool_calls_section_begin|>",
                           "<|tool_call_begin|>",
                           "<|tool_call_argument_begin|>",
                           "<|tool_call_end|>",
                           "<|tool_calls_section_end|>",
                           "<｜tool▁calls▁begin｜>",
                           "<｜tool▁call▁begin｜>",
                           "<｜tool▁sep｜>",
                           "<｜tool▁call▁end｜>",
                           "<｜tool▁calls▁end｜>"}) {
    if (marks_are_special) special.insert(static_cast<int32_t>(tokens.size()));
    tokens.push_back(mark);
  }
  return {std::move(tokens), std::move(special)};
}

int32_t find(const text::Tokenizer& tokenizer, const std::string& text) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.token_bytes(id) == text) return id;
  ADD_FAILURE() << text;
  return 0;
}

std::vector<chat::Tool> tools() {
  return {{"weather", ordered_json::parse(R"({"type": "object", "properties": {
               "place": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
               "required": ["place"]})"),
           false},
          {"now", ordered_json::parse(R"({"type": "object", "properties": {}})"), false}};
}

// Goes on at random while the guide says what may come; ends where it may, or after `most` tokens.
std::string walk(Guide& guide, const text::Tokenizer& tokenizer, Guide::State& state,
                 std::mt19937& random, int most = 400) {
  std::string text;
  for (int i = 0; i < most && !guide.is_complete(state); ++i) {
    const auto mask = guide.allowed(state);
    if (mask.empty()) break;
    std::vector<int32_t> ways;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token)
      if (is_allowed(mask, token)) ways.push_back(token);
    if (ways.empty()) {
      ADD_FAILURE() << "a dead end behind " << text;
      break;
    }
    const bool may_end = is_allowed(mask, kEnd);
    const int32_t token = may_end && random() % 2 == 0 ? kEnd : ways[random() % ways.size()];
    if (token != kEnd) text += tokenizer.token_bytes(token);
    state = guide.after(state, token);
  }
  return text;
}

// Texts without quotes may be long before they end by chance: one of two, here.
std::vector<chat::Tool> tools_of(const chat::ToolFormat& format) {
  auto out = tools();
  if (!format.tagged.key_begin.empty())
    out[0].parameters["properties"]["place"] = {{"type", "string"}, {"enum", {"Oslo", "7"}}};
  return out;
}

// How many there are.
int expect_calls(const chat::ToolFormat& format, const std::string& behind_trigger) {
  chat::MessageForm form;
  form.calls = &format;
  form.begins_in_call = true;
  for (const chat::Tool& tool : tools_of(format)) form.parameters[tool.name] = tool.parameters;
  chat::MessageReader reader(form);
  auto parts = reader.add(behind_trigger);
  for (auto& part : reader.finish()) parts.push_back(part);
  EXPECT_GE(parts.size(), 2u) << behind_trigger;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    EXPECT_EQ(parts[i].kind, chat::MessagePart::Kind::kCall) << behind_trigger;
    EXPECT_EQ(parts[i + 1].kind, chat::MessagePart::Kind::kArguments) << behind_trigger;
    const auto arguments = ordered_json::parse(parts[i + 1].text, nullptr, false);
    EXPECT_TRUE(arguments.is_object()) << behind_trigger;
    if (!arguments.is_object()) continue;
    if (parts[i].text == "now") {
      EXPECT_TRUE(arguments.empty());
      continue;
    }
    EXPECT_EQ(parts[i].text, "weather");
    EXPECT_TRUE(arguments.at("place").is_string());
    if (arguments.contains("days")) {
      EXPECT_LE(arguments["days"].get<int>(), 9);
    }
  }
  return reader.calls();
}

TEST(CallGuide, WhatItAllowsIsReadAsCallsInEveryFormat) {
  std::mt19937 random(3);
  for (const std::string& name : chat::tool_format_names())
    for (const bool marks_are_special : {false, true})
      for (const bool many : {false, true}) {
        SCOPED_TRACE(name + (marks_are_special ? ", special marks" : "") + (many ? ", many" : ""));
        const auto tokenizer = tokenizer_with(marks_are_special);
        const chat::ToolFormat& format = *chat::find_tool_format(name);
        GuideMaker maker(tokenizer, {kEnd});
        const auto guide =
            maker.make({sampling::GuideKind::kCalls,
                        chat::tool_guide(format, tools_of(format), ToolGuideUse::kForced, many),
                        {}});
        int ended = 0;
        int most_calls = 0;
        for (int i = 0; i < 30; ++i) {
          Guide::State state = guide->start();
          const std::string text = walk(*guide, tokenizer, state, random);
          if (!guide->is_complete(state)) continue;
          ++ended;
          most_calls = std::max(most_calls, expect_calls(format, text));
        }
        EXPECT_GT(ended, 15);
        if (!many) {
          EXPECT_EQ(most_calls, 1);
        } else {
          EXPECT_GT(most_calls, 1);
        }
      }
}

// Texts between marks: any but the mark that ends them, and of a list only what is in it.
TEST(CallGuide, ReadsArgumentsBetweenMarks) {
  const std::vector<chat::Tool> offered{
      {"write", ordered_json::parse(R"({"type": "object", "properties": {
           "text": {"type": "string"}, "mode": {"type": "string", "enum": ["a", "wx"]},
           "size": {"$ref": "#/$defs/n"}, "what": {"contains": {}}}, "required": ["text"],
           "$defs": {"n": {"type": "integer"}}})"),
       false},
      {"free", nullptr, false}};
  const auto allows = [&](const char* format, const std::string& text) {
    Automaton automaton(network_of(
        {sampling::GuideKind::kCalls,
         chat::tool_guide(*chat::find_tool_format(format), offered, ToolGuideUse::kForced, false),
         {}}));
    return matches(automaton, text);
  };
  const std::string begin = "\n<function=write>\n<parameter=text>\n", end = "\n</parameter>\n",
                    close = "</function>\n</tool_call>";
  for (const std::string text : {"", "\n", "a < b </par \n</p\n\n", "é\n</parameter",
                                 "\n\n</parameter x", "\"quoted\" {", "\n</\n</\n"})
    EXPECT_TRUE(allows("qwen3_coder", begin + text + end + close)) << text;
  EXPECT_FALSE(allows("qwen3_coder", begin + "a" + end + "a" + end + close));
  EXPECT_FALSE(allows("qwen3_coder", begin + "a\xff" + end + close)) << "no UTF-8";
  EXPECT_FALSE(allows("qwen3_coder", "\n<function=write>\n" + close)) << "text is required";
  EXPECT_FALSE(allows("qwen3_coder", "\n<function=read>\n" + close));
  const auto with = [&](const std::string& name, const std::string& value) {
    return begin + "a" + end + "<parameter=" + name + ">\n" + value + end + close;
  };
  EXPECT_TRUE(allows("qwen3_coder", with("mode", "wx")));
  EXPECT_FALSE(allows("qwen3_coder", with("mode", "w")));
  EXPECT_TRUE(allows("qwen3_coder", with("size", "42")));
  EXPECT_FALSE(allows("qwen3_coder", with("size", "x")));
  EXPECT_TRUE(allows("qwen3_coder", with("what", "[1, \"a\"]"))) << "a keyword that is not known";
  EXPECT_FALSE(allows("qwen3_coder", with("more", "1")));
  EXPECT_TRUE(allows("qwen3_coder", "\n<function=free>\n<parameter=any>\nx\n" + end + close));
  const std::string argument = "<arg_key>text</arg_key><arg_value>a < b</arg_value>";
  EXPECT_TRUE(allows("glm47", "write" + argument + "</tool_call>"));
  EXPECT_TRUE(allows(
      "glm47", "write" + argument + "<arg_key>size</arg_key><arg_value>3</arg_value></tool_call>"));
  EXPECT_TRUE(allows("glm47", "free</tool_call>"));
  EXPECT_TRUE(
      allows("glm45", "write\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"));
  EXPECT_FALSE(allows("glm45", "write" + argument + "</tool_call>"));
}

// Calls of one section have numbers, of so many digits and no others.
TEST(CallGuide, HoldsCallsThatHaveNumbers) {
  const auto allows = [&](const std::string& text, bool many = true) {
    Automaton automaton(network_of(
        {sampling::GuideKind::kCalls,
         chat::tool_guide(*chat::find_tool_format("kimi_k2"), tools(), ToolGuideUse::kForced, many),
         {}}));
    return matches(automaton, text);
  };
  const auto call = [](const std::string& id) {
    return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>{}<|tool_call_end|>";
  };
  const std::string close = "<|tool_calls_section_end|>";
  for (const char* id :
       {"functions.now:0", "functions.now:7", "functions.now:120", "functions.now:9999"})
    EXPECT_TRUE(allows(call(id) + close)) << id;
  for (const char* id :
       {"functions.now", "functions.now:", "now:0", "functions.now:00", "functions.now:01",
        "functions.now:10000", "functions.now:-1", "functions.then:0", "functions.now:0 "})
    EXPECT_FALSE(allows(call(id) + close)) << id;
  const std::string both = call("functions.now:0") + call("functions.now:1");
  EXPECT_TRUE(allows(both + close));
  EXPECT_FALSE(allows(both + close, false)) << "one was asked for";
  EXPECT_FALSE(allows(close)) << "one must come";
}

TEST(CallGuide, RefusesWhatCanNotHoldAStrictTextWithoutQuotes) {
  const chat::Tool strict{
      "f",
      ordered_json::parse(
          R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})"),
      true};
  const auto spec = [&](const char* format) {
    return chat::tool_guide(*chat::find_tool_format(format), {strict}, ToolGuideUse::kForced,
                            false);
  };
  EXPECT_NO_THROW(network_of({sampling::GuideKind::kCalls, spec("hermes"), {}}));
  try {
    network_of({sampling::GuideKind::kCalls, spec("glm47"), {}});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("\"a\" of a strict tool"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("pattern"), std::string::npos) << error.text();
  }
}

TEST(CallGuide, LeavesTextFreeUpToTheTrigger) {
  std::mt19937 random(5);
  for (const bool is_special : {false, true}) {
    const auto tokenizer = tokenizer_with(is_special);
    const chat::ToolFormat& format = *chat::find_tool_format("hermes");
    for (const bool many : {false, true}) {
      GuideMaker maker(tokenizer, {kEnd});
      const auto guide =
          maker.make({sampling::GuideKind::kCalls,
                      chat::tool_guide(format, tools(), ToolGuideUse::kOffered, many),
                      {}});
      Guide::State state = guide->start();
      EXPECT_TRUE(guide->allowed(state).empty());
      EXPECT_FALSE(guide->is_complete(state));
      // Nearly the trigger, and a special token of another kind.
      for (const char* text : {"<", "<", "<", "t", "o", "o", "l", "ab", "<s>", " "}) {
        state = guide->after(state, find(tokenizer, text));
        EXPECT_TRUE(guide->allowed(state).empty()) << text;
      }
      Guide::State spelled = state;
      for (char c : std::string("<<tool_call>"))
        spelled = guide->after(spelled, find(tokenizer, std::string(1, c)));
      state = guide->after(state, find(tokenizer, "<tool_call>"));
      EXPECT_EQ(spelled, state);
      ASSERT_FALSE(guide->allowed(state).empty());
      EXPECT_FALSE(is_allowed(guide->allowed(state), kEnd));
      EXPECT_FALSE(is_allowed(guide->allowed(state), find(tokenizer, "ab")));
      const std::string text = walk(*guide, tokenizer, state, random);
      expect_calls(format, text);
      EXPECT_EQ(guide->is_complete(state), !many) << text;
      EXPECT_EQ(guide->allowed(state).empty(), many);
      EXPECT_EQ(guide->after(guide->start(), kEnd), Guide::kEnded);
    }
  }
}

// A format without a trigger: guided once the output has begun as a call of one of the tools.
TEST(CallGuide, WaitsForTheBeginningOfACall) {
  std::mt19937 random(6);
  const auto tokenizer = tokenizer_with(false);
  const chat::ToolFormat& format = *chat::find_tool_format("llama3_json");
  GuideMaker maker(tokenizer, {kEnd});
  const auto guide = maker.make({sampling::GuideKind::kCalls,
                                 chat::tool_guide(format, tools(), ToolGuideUse::kOffered, false),
                                 {}});
  const auto spelled = [&](const std::string& text) {
    Guide::State state = guide->start();
    for (char c : text) {
      EXPECT_TRUE(guide->allowed(state).empty()) << text;
      state = guide->after(state, find(tokenizer, std::string(1, c)));
    }
    return state;
  };
  const std::string head = R"({"name": "weather", "parameters": )";
  Guide::State state = spelled(head);
  ASSERT_FALSE(guide->allowed(state).empty());
  EXPECT_FALSE(is_allowed(guide->allowed(state), find(tokenizer, "a")));
  const std::string text = walk(*guide, tokenizer, state, random);
  EXPECT_TRUE(guide->is_complete(state));
  expect_calls(format, head + text);
  for (const char* other :
       {R"({"name": "Bob", "age": 3})", "It is warm.", R"({"name": "weather", "x)"}) {
    const Guide::State free = spelled(other);
    EXPECT_TRUE(guide->allowed(free).empty()) << other;
    EXPECT_FALSE(guide->is_complete(free));
    EXPECT_EQ(guide->after(free, kEnd), Guide::kEnded);
  }
}

TEST(CallGuide, RelaxesWhatItDoesNotKnowUnlessTheToolIsStrict) {
  const auto tokenizer = tokenizer_with(false);
  const chat::ToolFormat& format = *chat::find_tool_format("hermes");
  std::vector<chat::Tool> odd{
      {"f",
       ordered_json::parse(
           R"({"type": "object", "properties": {"x": {"type": "array", "uniqueItems": true}}, "required": ["x"]})"),
       false}};
  GuideMaker maker(tokenizer, {kEnd});
  const auto spec = [&] {
    return sampling::GuideSpec{sampling::GuideKind::kCalls,
                               chat::tool_guide(format, odd, ToolGuideUse::kForced, false),
                               {}};
  };
  const auto guide = maker.make(spec());
  Guide::State state = guide->start();
  for (char c : std::string(R"({"name": "f", "arguments": {"x": [1, {}]}})"))
    state = guide->after(state, find(tokenizer, std::string(1, c)));
  ASSERT_EQ(guide->relaxed().size(), 1u);
  EXPECT_NE(guide->relaxed()[0].find("#/properties/x: uniqueItems"), std::string::npos);
  odd[0].is_strict = true;
  try {
    maker.make(spec());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("uniqueItems"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice::guide
