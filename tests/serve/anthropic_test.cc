// Bodies of /v1/messages as chats, and answers as blocks and events; without a server.
#include <gtest/gtest.h>

#include "src/serve/anthropic_answer.h"
#include "src/serve/anthropic_request.h"
#include "tests/serve/event_stream.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ChatRequest messages(const std::string& body, MessagesUse use = MessagesUse::kAnswer) {
  return parse_messages(body, {}, 100, use);
}

ApiError messages_error(const std::string& body) {
  try {
    messages(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(AnthropicRequest, ReadsATextAndItsSettings) {
  const ChatRequest call =
      messages(R"({"model": "m", "max_tokens": 7, "system": "Be short.", "stream": true,
      "messages": [{"role": "user", "content": "Hello"}], "stop_sequences": ["x", "y"], "temperature": 0.25, "top_p": 0.5,
      "top_k": 3, "metadata": {"user_id": "u"}, "service_tier": "auto", "thinking": {"type": "disabled"}})");
  EXPECT_EQ(call.messages.dump(),
            R"([{"role":"system","content":[{"type":"text","text":"Be short."}]},)"
            R"({"role":"user","content":[{"type":"text","text":"Hello"}]}])");
  EXPECT_EQ(call.params.max_tokens, 7);
  EXPECT_TRUE(call.has_max_tokens && call.streams && call.adds_generation_prompt);
  EXPECT_EQ(call.params.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_FLOAT_EQ(call.params.temperature, 0.25f);
  EXPECT_EQ(call.params.top_k, 3);
  EXPECT_EQ(call.variables["enable_thinking"], false);
  EXPECT_FALSE(messages(R"({"messages": [{"role": "user", "content": "a"}]})", MessagesUse::kCount)
                   .has_max_tokens);
}

TEST(AnthropicRequest, ReadsBlocksAsTheTurnsTheyAre) {
  const ChatRequest call = messages(R"({"max_tokens": 7, "system": [{"type": "text", "text": "One.",
      "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Two."}], "messages": [
    {"role": "user", "content": "a"},
    {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I ask."},
      {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}, {"type": "tool_use", "id": "t2", "name": "sun", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "up"},
      {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [{"type": "text", "text": "no clock"}]},
      {"type": "text", "text": "So?"}]}]})");
  const ordered_json& said = call.messages;
  ASSERT_EQ(said.size(), 6u) << said.dump(1);
  EXPECT_EQ(said[0]["content"][1]["text"], "Two.");
  EXPECT_EQ(said[1]["content"].size(), 2u) << "one turn";
  EXPECT_EQ(said[2]["reasoning_content"], "Hm.");
  EXPECT_EQ(said[2]["content"][0]["text"], "I ask.");
  EXPECT_EQ(said[2]["tool_calls"][1]["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(said[3]["tool_call_id"], "t2");
  EXPECT_EQ(said[3]["name"], "sun");
  EXPECT_EQ(said[4]["content"][0]["text"], "Error:");
  EXPECT_EQ(said[4]["content"][1]["text"], "no clock");
  EXPECT_EQ(said[5]["role"], "user");
}

TEST(AnthropicRequest, GoesOnWithTheAssistantsLastWords) {
  const ChatRequest call =
      messages(R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "Once"}]})");
  EXPECT_TRUE(call.continues_last);
  EXPECT_FALSE(call.adds_generation_prompt);
  EXPECT_EQ(messages_error(R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": ""}]})")
                .param,
            "messages");
}

TEST(AnthropicRequest, ReadsToolsAndFormats) {
  const std::string tools =
      R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"}], "tools": [{"name": "clock", "description": "d",
      "input_schema": {"type": "object"}}, {"type": "custom", "name": "sun", "input_schema": {"type": "object"}}])";
  const ChatRequest free = messages(tools + "}");
  EXPECT_EQ(free.callable.size(), 2u);
  EXPECT_EQ(free.tools[0]["function"]["parameters"]["type"], "object");
  EXPECT_TRUE(free.calls_many && !free.must_call);
  const ChatRequest any =
      messages(tools + R"(, "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})");
  EXPECT_TRUE(any.must_call && !any.calls_many);
  const ChatRequest one = messages(tools + R"(, "tool_choice": {"type": "tool", "name": "sun"}})");
  EXPECT_EQ(one.callable.at(0).name, "sun");
  EXPECT_TRUE(messages(tools + R"(, "tool_choice": {"type": "none"}})").callable.empty());
  const ChatRequest schema = messages(
      R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"}],
          "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}})");
  EXPECT_EQ(schema.params.guide.text, R"({"type":"object"})");
  EXPECT_EQ(schema.guide_field, "output_config");
}

TEST(AnthropicRequest, RefusesByName) {
  const std::string asked = R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a"}], )";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"max_tokens": 7})", "messages"},
      {R"({"max_tokens": 7, "messages": []})", "messages"},
      {R"({"max_tokens": 7, "messages": "a"})", "messages"},
      {R"({"max_tokens": 7, "messages": ["a"]})", "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user"}]})", "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": []}]})", "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": 7}]})", "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "tool", "content": "a"}]})", "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": "a", "name": "b"}]})",
       "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})",
       "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": [{"text": "a"}]}]})",
       "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]})",
       "messages"},
      {R"({"max_tokens": 7, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n",
           "input": "{}"}]}]})",
       "messages"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "max_tokens"},
      {R"({"max_tokens": 0, "messages": [{"role": "user", "content": "a"}]})", "max_tokens"},
      {R"({"max_tokens": 1e99, "messages": [{"role": "user", "content": "a"}]})", "max_tokens"},
      {asked + R"("system": 7})", "system"},
      {asked + R"("system": [{"type": "image"}]})", "system"},
      {asked + R"("stop_sequences": "x"})", "stop_sequences"},
      {asked + R"("stop_sequences": [7]})", "stop_sequences"},
      {asked + R"("stop_sequences": [""]})", "stop_sequences"},
      {asked + R"("stop": "x"})", "stop"},
      {asked + R"("temperature": -1})", "temperature"},
      {asked + R"("tools": [{"type": "bash_20250124", "name": "bash"}]})", "tools"},
      {asked + R"("tools": [{"name": "n"}]})", "tools"},
      {asked + R"("tools": [{"name": "a b", "input_schema": {}}]})", "tools"},
      {asked + R"("tool_choice": {"type": "any"}})", "tool_choice"},
      {asked + R"("tool_choice": "any"})", "tool_choice"},
      {asked + R"("tool_choice": {"type": "some"}})", "tool_choice"},
      {asked + R"("thinking": {"type": "enabled", "budget_tokens": 1024}})", "thinking"},
      {asked + R"("output_config": {"format": {"type": "json_schema"}}})", "output_config"},
      {asked + R"("container": "c"})", "container"},
      {asked + R"("mcp_servers": []})", "mcp_servers"},
      {asked + R"("speed": "fast"})", "speed"},
      {asked + R"("wat": 1})", "wat"}};
  for (const auto& [body, param] : cases) EXPECT_EQ(messages_error(body).param, param) << body;
  messages_error("");
  messages_error("[]");
}

AnswerShape messages_shape() {
  AnswerShape shape;
  shape.is_chat = true;
  shape.id = "msg_1";
  shape.model = "m";
  shape.max_tokens = 9;
  shape.form.calls = chat::find_tool_format("hermes");
  shape.form.has_thoughts = true;
  shape.prompt_ids = {{1, 2, 3}};
  return shape;
}

struct MessageHeard {
  std::string stream;
  json whole;
};
MessageHeard hear_message(const std::vector<const char*>& pieces, const std::string& reason,
                          const std::string& stop = "", int64_t tokens = 9) {
  MessageHeard out;
  for (const bool streams : {true, false}) {
    AnthropicAnswer answer(messages_shape(), streams);
    const auto add = [&](const Event& event) {
      answer.add(event);
      if (streams) out.stream += answer.stream_of(event);
    };
    Event event{Event::Kind::kStarted};
    event.cached_tokens = 2;
    add(event);
    for (const char* piece : pieces) {
      event = {};
      event.text = piece;
      add(event);
    }
    event = {};
    event.kind = Event::Kind::kFinished;
    event.finish_reason = reason;
    event.stop_string = stop;
    event.output_tokens = tokens;
    add(event);
    if (streams)
      out.stream += answer.stream_end();
    else
      out.whole = json::parse(answer.whole());
  }
  return out;
}

TEST(AnthropicAnswer, HasThoughtsTextAndCallsInOrder) {
  const MessageHeard heard =
      hear_message({"<think>Hm", "m.</think>", "\nI call.\n<tool_",
                    "call>\n{\"name\": \"f\", \"argu", "ments\": {\"a\": 1", "}}\n</tool_call>"},
                   "stop");
  const json& whole = heard.whole;
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(
      whole["content"],
      json::parse(
          R"([{"type": "thinking", "thinking": "Hmm.", "signature": ""}, {"type": "text", "text": "I call."},
                {"type": "tool_use", "id": ")" +
          whole["content"][2]["id"].get<std::string>() + R"(", "name": "f", "input": {"a": 1}}])"));
  EXPECT_EQ(whole["usage"], json::parse(R"({"input_tokens": 1, "cache_creation_input_tokens": 0,
      "cache_read_input_tokens": 2, "output_tokens": 9})"));
  const auto events = typed_events(heard.stream);
  std::vector<std::string> types;
  for (const std::string& type : types_of(events))
    if (types.empty() || types.back() != type) types.push_back(type);
  const std::string start = "content_block_start", delta = "content_block_delta",
                    stop = "content_block_stop";
  EXPECT_EQ(types,
            (std::vector<std::string>{"message_start", "ping", start, delta, stop, start, delta,
                                      stop, start, delta, stop, "message_delta", "message_stop"}));
  EXPECT_TRUE(events[0]["message"]["stop_reason"].is_null());
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 1);
  EXPECT_EQ(joined(events, delta, "/delta/thinking"_json_pointer), "Hmm.");
  EXPECT_EQ(joined(events, delta, "/delta/text"_json_pointer), "I call.");
  EXPECT_EQ(json::parse(joined(events, delta, "/delta/partial_json"_json_pointer)),
            (json{{"a", 1}}));
  const json& last = events[events.size() - 2];
  EXPECT_EQ(last["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(last["usage"]["output_tokens"], 9);
}

TEST(AnthropicAnswer, SaysWhyItStopped) {
  EXPECT_EQ(hear_message({"Once"}, "stop").whole["stop_reason"], "end_turn");
  const json stopped = hear_message({"Once"}, "stop", " upon").whole;
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], " upon");
  EXPECT_EQ(hear_message({"Once"}, "length").whole["stop_reason"], "max_tokens");
  EXPECT_EQ(hear_message({"Once"}, "length", "", 5).whole["stop_reason"],
            "model_context_window_exceeded");
  // A call cut short is no call that could be made.
  const json cut =
      hear_message({"Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1"}, "length")
          .whole;
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  ASSERT_EQ(cut["content"].size(), 1u) << cut.dump(1);
  EXPECT_EQ(cut["content"][0]["text"], "Well.");
  EXPECT_EQ(hear_message({}, "stop").whole["content"][0]["text"], "");
}

TEST(AnthropicAnswer, EndsWithWhyItFailed) {
  AnthropicAnswer answer(messages_shape(), true);
  const auto events = typed_events(answer.stream_error({504, "too late", "", "", 0}));
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"], (json{{"type", "timeout_error"}, {"message", "too late"}}));
}

}  // namespace
}  // namespace sluice::serve
