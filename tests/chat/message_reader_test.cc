// Answers in every format, however they are cut into pieces; and what looks like a call but is
// none.
#include "src/chat/message_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::chat {
namespace {

using Kind = MessagePart::Kind;

// Parts of one kind and call that follow each other are one.
void append(std::vector<MessagePart>& to, const std::vector<MessagePart>& parts) {
  for (const MessagePart& part : parts) {
    const bool goes_on = !to.empty() && to.back().kind == part.kind &&
                         to.back().call == part.call && part.kind != Kind::kCall;
    if (goes_on)
      to.back().text += part.text;
    else
      to.push_back(part);
  }
}

std::vector<MessagePart> read(const MessageForm& form, const std::vector<std::string>& pieces) {
  MessageReader reader(form);
  std::vector<MessagePart> out;
  for (const std::string& piece : pieces) append(out, reader.add(piece));
  append(out, reader.finish());
  return out;
}

std::string shown(const std::vector<MessagePart>& parts) {
  static constexpr const char* kNames[] = {"text", "thought", "call", "arguments"};
  std::string out;
  for (const MessagePart& part : parts)
    out += std::string(kNames[static_cast<int>(part.kind)]) + std::to_string(part.call) + "[" +
           part.text + "]";
  return out;
}

MessageForm form(const char* name) {
  MessageForm out;
  out.calls = find_tool_format(name);
  EXPECT_TRUE(out.calls || std::string(name) == "none") << name;
  return out;
}

struct Case {
  const char* format;
  const char* text;
  const char* parts;
};

constexpr Case kCases[] = {
    {"none", "Hello <tool_call>{\"name\": \"a\"}", "text0[Hello <tool_call>{\"name\": \"a\"}]"},
    {"hermes",
     "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>",
     "call0[add]arguments0[{\"a\": 1, \"b\": [2]}]"},
    {"hermes",
     "Let me see.\n\n<tool_call>{\"arguments\": {\"q\": \"a}\\\"b\"}, \"name\": "
     "\"f\"}</tool_call>\n"
     "<tool_call>\n{\"name\": \"g\"}\n</tool_call> Done.",
     "text0[Let me see.]call0[f]arguments0[{\"q\": "
     "\"a}\\\"b\"}]call1[g]arguments1[{}]text0[Done.]"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     "call0[f]arguments0[{\"a\": 1}]"},
    {"hermes", "<tool_call>{\"id\": 3, \"name\": \"f\", \"arguments\": {}, \"more\": {\"a\": []}}",
     "call0[f]arguments0[{}]"},
    // Cut short: within the arguments, within the name, within the end.
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b",
     "call0[f]arguments0[{\"a\": \"b]"},
    {"hermes", "<tool_call>\n{\"name\": \"f", "text0[<tool_call>\n{\"name\": \"f]"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_c",
     "call0[f]arguments0[{}]"},
    // No calls.
    {"hermes", "a < b <tool_cal", "text0[a < b <tool_cal]"},
    {"hermes", "x <tool_call> nothing", "text0[x <tool_call> nothing]"},
    {"hermes", "<tool_call></tool_call>b", "text0[<tool_call></tool_call>b]"},
    {"hermes", "<tool_call>{abc <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "text0[<tool_call>{abc]call0[f]arguments0[{}]"},
    {"hermes", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
     "text0[<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>]"},
    {"mistral",
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
     "\"arguments\": {}}]",
     "call0[f]arguments0[{\"a\": 1}]call1[g]arguments1[{}]"},
    {"mistral_args", "[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]g[ARGS]{}",
     "call0[f]arguments0[{\"a\": {}}]call1[g]arguments1[{}]"},
    {"mistral_args", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}",
     "call0[f]arguments0[{\"a\": 1}]"},
    {"mistral_args", "[TOOL_CALLS]f and no more", "text0[[TOOL_CALLS]f and no more]"},
    {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "call0[f]arguments0[{\"a\": 1}]"},
    {"llama3_json",
     " <|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": "
     "\"g\", "
     "\"parameters\": {}}",
     "call0[f]arguments0[{}]call1[g]arguments1[{}]"},
    // Text behind a call keeps its space and its brackets.
    {"llama3_json", "{\"name\": \"f\", }}\n x", "call0[f]arguments0[{}]text0[}\n x]"},
    {"llama3_json", "{\"name\": \"f\", \"parameters\": {}}; {\"x\": 1}",
     "call0[f]arguments0[{}]text0[{\"x\": 1}]"},
    {"llama3_json", "{\"answer\": 42}", "text0[{\"answer\": 42}]"},
    {"llama3_json", "The call is {\"name\": \"f\", \"parameters\": {}}",
     "text0[The call is {\"name\": \"f\", \"parameters\": {}}]"},
    {"granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "call0[f]arguments0[{}]"},
    {"deepseek_v3",
     "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
     "\"é\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n``"
     "`<｜"
     "tool▁call▁end｜><｜tool▁calls▁end｜>",
     "text0[Wait.]call0[f]arguments0[{\"a\": \"é\"}]call1[g]arguments1[{}]"},
    {"deepseek_v31",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
     "1}<｜tool▁call▁end｜><｜tool▁"
     "call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "call0[f]arguments0[{\"a\": 1}]call1[g]arguments1[{}]"},
};

// Of Kimi: with the marks' names shortened, which full() makes whole.
constexpr Case kNumberedCases[] = {
    {"kimi_k2", "Let me see. [S][C]functions.f:0[A]{\"a\": [1, \"}\"]}[E][/S]",
     "text0[Let me see.]call0[f]arguments0[{\"a\": [1, \"}\"]}]"},
    {"kimi_k2", "[S][C]functions.f:7[A]{}[E][C]functions.g:8[A]{\"a\": \"é\"}[E][/S] Done.",
     "call0[f]arguments0[{}]call1[g]arguments1[{\"a\": \"é\"}]text0[Done.]"},
    // Names with dots, dashes, colons and digits; space; no prefix; no number.
    {"kimi_k2", "[S][C]functions.a.b-c_1:12[A]{}[E][C]functions.functions.x:13[A]{}[E][/S]",
     "call0[a.b-c_1]arguments0[{}]call1[functions.x]arguments1[{}]"},
    {"kimi_k2",
     "[S]\n[C] functions.a:1:2 [A] {}[E]\n[C]f:3[A]{}\n[E]\n[C]functions.g[A]{}[E]\n[/S]",
     "call0[a:1]arguments0[{}]call1[f]arguments1[{}]call2[g]arguments2[{}]"},
    {"kimi_k2", "[S][C]functions.f2[A]{}[E][C]functions.f:[A]{}[E][/S]",
     "call0[f2]arguments0[{}]call1[f:]arguments1[{}]"},
    // Marks and a call within a text of the arguments.
    {"kimi_k2", "[S][C]functions.f:0[A]{\"a\": \"[E][/S] \\\" [C]\"}[E][/S]",
     "call0[f]arguments0[{\"a\": \"[E][/S] \\\" [C]\"}]"},
    // Cut short: in the section's end, before it, in a call's end, in arguments, in an id.
    {"kimi_k2", "[S][C]functions.f:0[A]{}[E]<|tool_calls_sec", "call0[f]arguments0[{}]"},
    {"kimi_k2", "[S][C]functions.f:0[A]{}[E]", "call0[f]arguments0[{}]"},
    {"kimi_k2", "[S][C]functions.f:0[A]{}<|tool_", "call0[f]arguments0[{}]"},
    {"kimi_k2", "[S][C]functions.f:0[A]{\"a\": [", "call0[f]arguments0[{\"a\": []"},
    {"kimi_k2", "[S][C]functions.f:", "text0[[S][C]functions.f:]"},
    // No calls: an empty section, no object, no name, another section's text.
    {"kimi_k2", "a[S][/S]b", "text0[a[S][/S]b]"},
    {"kimi_k2", "[S][C]functions.f:0[A]no[E][/S]", "text0[[S][C]functions.f:0[A]no[E][/S]]"},
    {"kimi_k2", "[S][C]functions.:0[A]{}[E][/S]", "text0[[S][C]functions.:0[A]{}[E][/S]]"},
    {"kimi_k2", "[S] I call nobody", "text0[[S] I call nobody]"},
    {"kimi_k2", "<|tool_calls_section_b", "text0[<|tool_calls_section_b]"},
};

std::string full(std::string text) {
  for (const auto& [mark, name] : {std::pair("[S]", "<|tool_calls_section_begin|>"),
                                   {"[/S]", "<|tool_calls_section_end|>"},
                                   {"[C]", "<|tool_call_begin|>"},
                                   {"[A]", "<|tool_call_argument_begin|>"},
                                   {"[E]", "<|tool_call_end|>"}})
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;)
      text.replace(at, std::string_view(mark).size(), name);
  return text;
}

constexpr Case kTaggedCases[] = {
    {"qwen3_coder",
     "Let me see.\n<tool_call>\n<function=f>\n<parameter=text>\na \"b\"\n\n <x>\n</parameter>\n"
     "<parameter=n>\n42\n</parameter>\n</function>\n</tool_call>",
     R"(text0[Let me see.]call0[f]arguments0[{"text": "a \"b\"\n\n <x>", "n": 42}])"},
    {"qwen3_coder",
     "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n"
     "<parameter=flag>\nTrue\n</parameter>\n<parameter=list>\n[1,\n 2]\n</parameter>\n"
     "</function>\n</tool_call> Done.",
     "call0[now]arguments0[{}]call1[f]arguments1[{\"flag\": true, \"list\": [1,\n "
     "2]}]text0[Done.]"},
    // Without their new lines; a text that is a number; an empty one.
    {"qwen3_coder",
     "<tool_call><function=f><parameter=text>007</parameter><parameter=other>so it is"
     "</parameter></function></tool_call>",
     R"(call0[f]arguments0[{"text": "007", "other": "so it is"}])"},
    {"qwen3_coder",
     "<tool_call>\n<function=f>\n<parameter=text>\n\n</parameter>\n<parameter=text>\n</parameter>\n"
     "</function>\n</tool_call>",
     R"(call0[f]arguments0[{"text": "", "text": ""}])"},
    // Cut short: in a text, in a number, between arguments, in the name.
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=text>\nabc\n</par",
     "call0[f]arguments0[{\"text\": \"abc\\n</par]"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\n12", "call0[f]arguments0[{\"n\": ]"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\n12\n</parameter>\n</fun",
     "call0[f]arguments0[{\"n\": 12]"},
    {"qwen3_coder", "<tool_call>\n<function=f", "text0[<tool_call>\n<function=f]"},
    // No calls; what is no part of a call ends it.
    {"qwen3_coder", "<tool_call>\n<function=a b>x", "text0[<tool_call>\n<function=a b>x]"},
    {"qwen3_coder", "<tool_call>{\"name\": \"f\"}", "text0[<tool_call>{\"name\": \"f\"}]"},
    {"qwen3_coder", "<tool_call><function=f>oh<parameter=n>1",
     "call0[f]arguments0[{}]text0[oh<parameter=n>1]"},
    {"glm47",
     "<tool_call>f<arg_key>text</arg_key><arg_value>a\nb\n</arg_value><arg_key>n</arg_key>"
     "<arg_value>{\"a\": null}</arg_value></tool_call><tool_call>now</tool_call>",
     R"(call0[f]arguments0[{"text": "a\nb\n", "n": {"a": null}}]call1[now]arguments1[{}])"},
    {"glm45",
     "So.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>é</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>1.5</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>\nDone",
     R"(text0[So.]call0[f]arguments0[{"text": "é", "n": 1.5}]call1[now]arguments1[{}]text0[Done])"},
    {"glm45", "<tool_call>f\n<arg_key>text</arg_key>\n", "call0[f]arguments0[{\"text\": ]"},
    {"glm47", "<tool_call>some words <b>", "text0[<tool_call>some words <b>]"},
    {"glm47", "<tool_call>f <b>", "text0[<tool_call>f <b>]"},
    {"glm47", "<tool_call></tool_call>x", "text0[<tool_call></tool_call>x]"},
};

constexpr Case kChannelCases[] = {
    {"harmony",
     "<|channel|>analysis<|message|>Hm. a "
     "<b|<|end|><|start|>assistant<|channel|>final<|message|>It "
     "is.<|return|>",
     "thought0[Hm. a <b|]text0[It is.]"},
    {"harmony",
     "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>",
     "thought0[So.]call0[add]arguments0[{\"a\": 1}]"},
    // The name before the channel; text before a call; two calls; no arguments.
    {"harmony",
     "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant "
     "to=functions.add<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>"
     "commentary to=functions.now<|message|><|call|>",
     "text0[Let me see.]call0[add]arguments0[{}]call1[now]arguments1[{}]"},
    // Two messages of a kind; an end that is left out.
    {"harmony",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
     "<|channel|>final<|message|>c<|start|>assistant<|channel|>final<|message|>d",
     "thought0[a\n\nb]text0[c\n\nd]"},
    // Cut short: in a header, in a thought, in arguments, in an end.
    {"harmony", "<|channel|>ana", ""},
    {"harmony", "<|channel|>analysis<|message|>a <|en", "thought0[a <|en]"},
    {"harmony",
     "<|channel|>commentary to=functions.f<|message|>{\"a\": ", "call0[f]arguments0[{\"a\": ]"},
    // No channels at all.
    {"harmony", "Just <b>text</b> <|", "text0[Just <b>text</b> <|]"},
    {"harmony", " to be", "text0[ to be]"},
};

// All cuts into two, single bytes, and random pieces.
TEST(MessageReader, ReadsEveryFormatHoweverItIsCut) {
  std::mt19937 random(1);
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  cases.insert(cases.end(), std::begin(kTaggedCases), std::end(kTaggedCases));
  cases.insert(cases.end(), std::begin(kChannelCases), std::end(kChannelCases));
  cases.insert(cases.end(), std::begin(kNumberedCases), std::end(kNumberedCases));
  for (const Case& one : cases) {
    const std::string text = full(one.text), parts = full(one.parts);
    SCOPED_TRACE(std::string(one.format) + ": " + text);
    MessageForm with = form(one.format);
    with.has_thoughts = with.calls && with.calls->has_channels;
    with.parameters["f"] =
        nlohmann::ordered_json::parse(R"({"properties": {"text": {"type": "string"}}})");
    ASSERT_EQ(shown(read(with, {text})), parts);
    for (size_t cut = 0; cut <= text.size(); ++cut)
      ASSERT_EQ(shown(read(with, {text.substr(0, cut), text.substr(cut)})), parts)
          << "cut at " << cut;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t bytes = round == 0 ? 1 : 1 + random() % 9;
        pieces.push_back(text.substr(at, bytes));
        at += bytes;
      }
      ASSERT_EQ(shown(read(with, pieces)), parts);
    }
  }
}

TEST(MessageReader, TellsThoughtsFromTheAnswer) {
  MessageForm thinks = form("hermes");
  thinks.has_thoughts = true;
  const auto parts = [&](const std::string& text) { return shown(read(thinks, {text})); };
  EXPECT_EQ(parts("<think>\nHm. a < b\n</think>\n\nYes."), "thought0[Hm. a < b]text0[Yes.]");
  EXPECT_EQ(parts("\n<think>\n\n</think>\n\nYes."), "text0[Yes.]");
  EXPECT_EQ(parts("Yes. <think>no</think>"), "text0[Yes. <think>no</think>]");
  EXPECT_EQ(parts("<think>no end"), "thought0[no end]");
  EXPECT_EQ(parts("<think>a</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
            "thought0[a]call0[f]arguments0[{}]");
  EXPECT_EQ(parts("<thi"), "text0[<thi]");
  thinks.begins_in_thought = true;
  EXPECT_EQ(parts("Hm.</think>Yes."), "thought0[Hm.]text0[Yes.]");
  MessageForm plain;
  EXPECT_EQ(shown(read(plain, {"<think>a</think>"})), "text0[<think>a</think>]");
}

TEST(MessageReader, GoesOnWhereThePromptHasBegunTheCall) {
  MessageForm forced = form("hermes");
  forced.begins_in_call = true;
  EXPECT_EQ(shown(read(forced, {"\n{\"name\": \"f\", \"argu", "ments\": {}}\n</tool_call>"})),
            "call0[f]arguments0[{}]");
  EXPECT_EQ(shown(read(forced, {"oh"})), "text0[<tool_call>oh]");
}

// Without a trigger, JSON of another kind is an answer.
TEST(MessageReader, TakesNoJsonForACallOfWhatIsNoTool) {
  MessageForm with = form("llama3_json");
  with.names = {"add", "list"};
  for (const char* text :
       {"{\"name\": \"Bob\", \"age\": 3}", "{\"name\": \"Bob\", \"parameters\": {\"a\": 1}}"}) {
    EXPECT_EQ(shown(read(with, {text})), "text0[" + std::string(text) + "]");
    std::vector<std::string> pieces;
    for (char c : std::string(text)) pieces.push_back(std::string(1, c));
    EXPECT_EQ(shown(read(with, pieces)), "text0[" + std::string(text) + "]");
  }
  EXPECT_EQ(shown(read(with, {"{\"name\": \"add\", \"parameters\": {}}"})),
            "call0[add]arguments0[{}]");
}

// The name's end is looked for so far and no further, however much has come.
TEST(MessageReader, GivesUpNamesWithoutEndAlikeHoweverTheyAreCut) {
  const MessageForm with = form("mistral_args");
  for (const size_t filler : {200, 250, 256, 257, 262, 300}) {
    const std::string text =
        "[TOOL_CALLS]f[CALL_ID]" + std::string(filler - 10, 'x') + "[ARGS]{\"a\": 1}";
    std::vector<std::string> pieces;
    for (char c : text) pieces.push_back(std::string(1, c));
    EXPECT_EQ(shown(read(with, pieces)), shown(read(with, {text}))) << filler;
    EXPECT_EQ(shown(read(with, {text})).starts_with("call0"), filler <= 256) << filler;
  }
}

// Arguments go out as they come, not only when they are whole.
TEST(MessageReader, StreamsArguments) {
  MessageReader reader(form("hermes"));
  EXPECT_TRUE(reader.add("<tool_call>{\"name\": \"f\", ").empty());
  EXPECT_EQ(shown(reader.add("\"arguments\": {\"a\": ")), "call0[f]arguments0[{\"a\": ]");
  EXPECT_EQ(shown(reader.add("\"long ")), "arguments0[\"long ]");
  EXPECT_EQ(shown(reader.add("text\"}")), "arguments0[text\"}]");
  EXPECT_EQ(reader.calls(), 1);
}

// Made-up texts of the formats' own marks: never lost, never read otherwise for being cut.
TEST(MessageReader, ReadsAlikeHoweverAnyTextIsCut) {
  std::mt19937 random(7);
  const std::vector<std::string> marks{"<tool_call>",
                                       "</tool_call>",
                                       "{\"name\": \"f\"",
                                       ", \"arguments\": ",
                                       "{\"a\": [1]}",
                                       "}",
                                       "{",
                                       "\"",
                                       "\\",
                                       "[",
                                       "]",
                                       "\n",
                                       " ",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "f",
                                       "<function=",
                                       "<parameter=",
                                       ">",
                                       "</parameter>",
                                       "</function>",
                                       "<arg_key>",
                                       "</arg_key>",
                                       "<arg_value>",
                                       "</arg_value>",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|start|>",
                                       "<|end|>",
                                       "<|call|>",
                                       "analysis",
                                       " to=functions.f",
                                       "<think>",
                                       "</think>",
                                       "<|tool_call|>",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_call_begin|>",
                                       "functions.f:1",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "<|tool_calls_section_end|>",
                                       "<|python_tag|>",
                                       ", \"parameters\": ",
                                       "; ",
                                       "x",
                                       "<",
                                       "</"};
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    if (round % 2 == 1) text = "{\"name\": \"f\", ";  // where no mark begins a call
    for (int i = 0; i < 14; ++i) text += marks[random() % marks.size()];
    const auto names = tool_format_names();
    MessageForm with = form(names[random() % names.size()].c_str());
    with.has_thoughts = random() % 2 == 0;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = 1 + random() % 6;
      pieces.push_back(text.substr(at, bytes));
      at += bytes;
    }
    ASSERT_EQ(shown(read(with, {text})), shown(read(with, pieces)))
        << with.calls->name << ": " << text;
  }
}

}  // namespace
}  // namespace sluice::chat
