// Calls that are told by number: ids of earlier turns, whatever they came with, become what the
// template of Kimi-K2 writes, and their results keep to them.
#include "src/chat/numbered_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/chat/message_reader.h"

namespace sluice::chat {
namespace {

using nlohmann::ordered_json;

const ToolFormat& kimi() { return *find_tool_format("kimi_k2"); }

ordered_json call(const std::string& id, const std::string& name) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}};
}
ordered_json calling(const std::vector<ordered_json>& calls) {
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}};
}
ordered_json result(const std::string& id, const std::string& content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", content}};
}

TEST(NumberedCalls, AnIdIsPrefixNameAndNumber) {
  EXPECT_EQ(numbered_call_id(kimi(), "get.the-sun_2", 0), "functions.get.the-sun_2:0");
  EXPECT_EQ(numbered_call_id(kimi(), "f", 1234567890123), "functions.f:1234567890123");
  for (const char* name : {"f", "get.the-sun_2", "functions.f", "a:1", "7", "é"})
    for (const int64_t number : {0, 9, 10, 99999})
      EXPECT_EQ(name_in_call_id(kimi(), numbered_call_id(kimi(), name, number)), name);
  EXPECT_EQ(name_in_call_id(kimi(), "f:3"), "f");
  EXPECT_EQ(name_in_call_id(kimi(), "functions.f"), "f");
  EXPECT_EQ(name_in_call_id(kimi(), "f2"), "f2");
  for (const char* nobody : {"", ":0", "functions.", "functions.:1"})
    EXPECT_EQ(name_in_call_id(kimi(), nobody), "") << nobody;
}

TEST(NumberedCalls, ThoseOfEarlierTurnsAreNumberedFromTheFirst) {
  ordered_json messages{{{"role", "user"}, {"content", "a"}},
                        calling({call("call_x", "f"), call("call_y", "g")}),
                        result("call_y", "of g"),
                        result("call_x", "of f"),
                        calling({call("functions.f:0", "f")}),
                        result("functions.f:0", "again"),
                        {{"role", "user"}, {"content", "b"}}};
  EXPECT_EQ(number_calls(kimi(), messages), 3);
  EXPECT_EQ(messages[1]["tool_calls"][0]["id"], "functions.f:0");
  EXPECT_EQ(messages[1]["tool_calls"][1]["id"], "functions.g:1");
  // In the order of the calls.
  EXPECT_EQ(messages[2], result("functions.f:0", "of f"));
  EXPECT_EQ(messages[3], result("functions.g:1", "of g"));
  // An id that was used before, for another call, is the later one's from there on.
  EXPECT_EQ(messages[4]["tool_calls"][0]["id"], "functions.f:2");
  EXPECT_EQ(messages[5], result("functions.f:2", "again"));
  const ordered_json once = messages;
  EXPECT_EQ(number_calls(kimi(), messages), 3);
  EXPECT_EQ(messages, once) << "numbered ones stay as they are";
}

TEST(NumberedCalls, WhatIsNoCallAndWhoseCallIsNotThereStays) {
  ordered_json messages = ordered_json::parse(R"([
    7, {"role": "assistant", "tool_calls": "none"}, {"role": 3, "content": "a"}, {"role": "tool", "content": "no id"},
    {"role": "assistant", "tool_calls": [null, {"id": "a"}, {"id": "b", "function": {"name": 4}}, {"function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "z", "content": "1"}, {"role": "tool", "tool_call_id": 5, "content": "2"}])");
  ordered_json before = messages;
  EXPECT_EQ(number_calls(kimi(), messages), 4) << "templates count them too";
  EXPECT_EQ(messages[4]["tool_calls"][3]["id"], "functions.f:3");
  before[4]["tool_calls"][3]["id"] = "functions.f:3";
  EXPECT_EQ(messages, before);
  ordered_json mixed{calling({call("x", "f"), call("y", "g")}), result("y", "1"), result("z", "2"),
                     result("x", "3")};
  EXPECT_EQ(number_calls(kimi(), mixed), 2);
  EXPECT_EQ(mixed[1], result("functions.g:1", "1")) << "one is nobody's: the order stays";
  EXPECT_EQ(mixed[2], result("z", "2"));
  EXPECT_EQ(mixed[3], result("functions.f:0", "3"));
  ordered_json none = ordered_json::array();
  EXPECT_EQ(number_calls(kimi(), none), 0);
}

// As the template that Kimi-K2 is published with writes them: it prints the ids that it is given.
constexpr const char* kKimi =
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}<|im_system|>tool<|im_middle|>## Return "
    "of "
    "{{ m.tool_call_id }}\n{{ m.content }}{%- else -%}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{{ m.content }}{%- if m.tool_calls -%}<|tool_calls_section_begin|>{%- for c in m.tool_calls "
    "-%}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson "
    "}}<|tool_call_end|>{%- endfor -%}<|tool_calls_section_end|>{%- endif -%}{%- endif -%}"
    "<|im_end|>{%- endfor -%}{%- if tools -%}{{ tools | tojson }}{%- endif -%}";

TEST(NumberedCalls, WhatTheModelIsShownIsReadAsTheSameCalls) {
  ChatTemplateSource source;
  source.text = kKimi;
  source.origin = "test";
  ASSERT_EQ(tool_format_of(source), &kimi());
  const ordered_json arguments{{"a", "[}<|tool_call_end|>"}, {"b", 2}};
  ordered_json messages{{{"role", "user"}, {"content", "a"}},
                        calling({call("p", "f.x"), call("q", "g")}),
                        result("q", "of g"),
                        result("p", "of f"),
                        calling({call("r", "f.x")}),
                        result("r", "more")};
  for (const size_t turn : {1, 4})
    for (ordered_json& one : messages[turn]["tool_calls"]) one["function"]["arguments"] = arguments;
  number_calls(kimi(), messages);
  const std::string prompt = ChatTemplate(source).render(messages, nullptr, true, nullptr);
  size_t at = 0;
  for (const char* written :
       {"<|tool_call_begin|>functions.f.x:0<|", "<|tool_call_begin|>functions.g:1<|",
        "## Return of functions.f.x:0\nof f<", "## Return of functions.g:1\nof g<",
        "<|tool_call_begin|>functions.f.x:2<|", "## Return of functions.f.x:2\nmore<"}) {
    at = prompt.find(written, at);
    ASSERT_NE(at, std::string::npos) << written << prompt;
  }
  MessageForm form;
  form.calls = &kimi();
  MessageReader reader(form);
  std::vector<MessagePart> parts = reader.add(prompt.substr(prompt.find(kimi().trigger)));
  std::erase_if(parts, [](const auto& part) { return part.kind == MessagePart::Kind::kText; });
  ASSERT_EQ(parts.size(), 6u);
  for (size_t i = 0; i < parts.size(); i += 2) {
    EXPECT_EQ(parts[i], (MessagePart{MessagePart::Kind::kCall, i == 2 ? "g" : "f.x",
                                     static_cast<int>(i / 2)}));
    EXPECT_EQ(ordered_json::parse(parts[i + 1].text), arguments);
  }
}

}  // namespace
}  // namespace sluice::chat
