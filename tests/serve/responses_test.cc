// Bodies of /v1/responses as chats, and answers as items and typed events; without a server.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/serve/responses_answer.h"
#include "src/serve/responses_request.h"
#include "tests/serve/event_stream.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ResponsesRequest respond(const std::string& body) { return parse_responses(body, {}, 100); }

ApiError respond_error(const std::string& body) {
  try {
    respond(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(ResponsesRequest, ReadsATextAndItsSettings) {
  const ResponsesRequest call =
      respond(R"({"model": "m", "input": "Hello", "instructions": "Be short.",
      "max_output_tokens": 7, "temperature": 0.25, "top_p": 0.5, "stream": true, "store": false, "background": false,
      "metadata": {"a": "b"}, "include": [], "truncation": "disabled", "previous_response_id": null, "user": "u",
      "stream_options": {"include_obfuscation": false}, "reasoning": {"effort": null, "summary": "auto"},
      "text": {"format": {"type": "text"}}, "top_logprobs": 0, "top_k": 3})");
  EXPECT_EQ(call.chat.messages.dump(),
            R"([{"role":"system","content":[{"type":"text","text":"Be short."}]},)"
            R"({"role":"user","content":"Hello"}])");
  EXPECT_EQ(call.chat.params.max_tokens, 7);
  EXPECT_TRUE(call.chat.has_max_tokens && call.chat.streams);
  EXPECT_FLOAT_EQ(call.chat.params.temperature, 0.25f);
  EXPECT_FLOAT_EQ(call.chat.params.top_p, 0.5f);
  EXPECT_EQ(call.chat.params.top_k, 3);
  EXPECT_EQ(call.echo["metadata"]["a"], "b");
  EXPECT_FALSE(respond(R"({"input": ""})").chat.has_max_tokens);
}

TEST(ResponsesRequest, ReadsItemsAsTheTurnsTheyAre) {
  const ResponsesRequest call = respond(R"({"instructions": "One.", "input": [
    {"role": "developer", "content": "Two."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
     "content": [{"type": "output_text", "text": "I ask.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "clock", "arguments": "{}", "status": "completed"},
    {"type": "function_call", "call_id": "call_2", "name": "sun", "arguments": "{\"a\": 1}"},
    {"type": "function_call_output", "call_id": "call_2", "output": "up"},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "noon"}]},
    {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}]})");
  const ordered_json& messages = call.chat.messages;
  ASSERT_EQ(messages.size(), 7u) << messages.dump(1);
  EXPECT_EQ(messages[0]["content"].size(), 2u);
  EXPECT_EQ(messages[0]["content"][1]["text"], "Two.");
  EXPECT_EQ(messages[1]["content"][1]["text"], "b");
  EXPECT_EQ(messages[2]["reasoning_content"], "Hm.");
  EXPECT_EQ(messages[2]["content"][0]["text"], "I ask.");
  EXPECT_EQ(messages[2]["tool_calls"][0]["id"], "call_1");
  EXPECT_EQ(messages[2]["tool_calls"][1]["function"]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(messages[3]["tool_call_id"], "call_2");
  EXPECT_EQ(messages[3]["name"], "sun");
  EXPECT_EQ(messages[4]["content"][0]["text"], "noon");
  EXPECT_EQ(messages[5]["content"][0]["text"], "x");
  EXPECT_EQ(messages[6]["content"][0]["text"], "y");
}

TEST(ResponsesRequest, ReadsToolsAndFormats) {
  const std::string tools =
      R"("input": "a", "tools": [{"type": "function", "name": "clock", "description": "d",
      "parameters": {"type": "object", "properties": {}}, "strict": null}, {"type": "function", "name": "sun"}])";
  const ResponsesRequest free = respond("{" + tools + R"(, "parallel_tool_calls": false})");
  EXPECT_EQ(free.chat.callable.size(), 2u);
  EXPECT_FALSE(free.chat.must_call || free.chat.calls_many);
  EXPECT_EQ(free.chat.tools[0]["function"]["description"], "d");
  EXPECT_FALSE(free.chat.tools[0]["function"].contains("strict"));
  const ResponsesRequest one =
      respond("{" + tools + R"(, "tool_choice": {"type": "function", "name": "sun"}})");
  ASSERT_EQ(one.chat.callable.size(), 1u);
  EXPECT_EQ(one.chat.callable[0].name, "sun");
  EXPECT_TRUE(one.chat.must_call);
  EXPECT_TRUE(respond("{" + tools + R"(, "tool_choice": "none"})").chat.callable.empty());
  const ResponsesRequest schema = respond(
      R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
          "schema": {"type": "object"}}}})");
  EXPECT_EQ(schema.chat.params.guide.kind, sampling::GuideKind::kJsonSchema);
  EXPECT_EQ(schema.chat.params.guide.text, R"({"type":"object"})");
  EXPECT_EQ(schema.chat.guide_field, "text");
  EXPECT_EQ(respond(R"({"input": "a", "text": {"format": {"type": "json_object"}}})")
                .chat.params.guide.kind,
            sampling::GuideKind::kJson);
}

TEST(ResponsesRequest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": null})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": 7})", "input"},
      {R"({"input": ["a"]})", "input"},
      {R"({"input": [{"role": "user"}]})", "input"},
      {R"({"input": [{"role": "user", "content": []}]})", "input"},
      {R"({"input": [{"role": "robot", "content": "a"}]})", "input"},
      {R"({"input": [{"role": "user", "content": "a", "colour": "red"}]})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})",
       "input"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input"},
      {R"({"input": [{"type": 3}]})", "input"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]})", "input"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c", "output": "n"}]})", "input"},
      {R"({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]})", "input"},
      {R"({"input": "a", "instructions": ["b"]})", "instructions"},
      {R"({"input": "a", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "a", "max_output_tokens": "7"})", "max_output_tokens"},
      {R"({"input": "a", "max_output_tokens": 1e30})", "max_output_tokens"},
      {R"({"input": "a", "max_output_tokens": 99999999999999999999})", "max_output_tokens"},
      {R"({"input": "a", "temperature": -1})", "temperature"},
      {R"({"input": "a", "max_tokens": 7})", "max_tokens"},
      {R"({"input": "a", "messages": []})", "messages"},
      {R"({"input": "a", "n": 2})", "n"},
      {R"({"input": "a", "store": true})", "store"},
      {R"({"input": "a", "background": true})", "background"},
      {R"({"input": "a", "previous_response_id": "resp_1"})", "previous_response_id"},
      {R"({"input": "a", "conversation": "c"})", "conversation"},
      {R"({"input": "a", "prompt": {"id": "p"}})", "prompt"},
      {R"({"input": "a", "include": ["reasoning.encrypted_content"]})", "include"},
      {R"({"input": "a", "truncation": "auto"})", "truncation"},
      {R"({"input": "a", "top_logprobs": 2})", "top_logprobs"},
      {R"({"input": "a", "max_tool_calls": 2})", "max_tool_calls"},
      {R"({"input": "a", "tools": [{"type": "web_search"}]})", "tools"},
      {R"({"input": "a", "tools": [{"type": "function", "function": {"name": "a"}}]})", "tools"},
      {R"({"input": "a", "tools": {}})", "tools"},
      {R"({"input": "a", "tool_choice": {"type": "allowed_tools"}})", "tool_choice"},
      {R"({"input": "a", "tool_choice": 1})", "tool_choice"},
      {R"({"input": "a", "tool_choice": "required"})", "tool_choice"},
      {R"({"input": "a", "reasoning": {"summary": "detailed"}})", "reasoning"},
      {R"({"input": "a", "text": {"format": {"type": "grammar"}}})", "text"},
      {R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}})", "text"},
      {R"({"input": "a", "text": "json"})", "text"},
      {R"({"input": "a", "stream_options": {"include_usage": true}})", "stream_options"},
      {R"({"input": "a", "wat": 1})", "wat"}};
  for (const auto& [body, param] : cases) EXPECT_EQ(respond_error(body).param, param) << body;
  EXPECT_TRUE(
      respond_error(R"({"input": "a", "max_output_tokens": 0})").message.starts_with("max_output_"))
      << "told in the caller's words";
  respond_error("");
  respond_error("[]");
  respond_error("{\"input\": \"\xff\"}");
}

Event said(const std::string& text) {
  Event event;
  event.text = text;
  event.choices.resize(1);
  return event;
}
Event ended_by(const std::string& reason) {
  Event event{Event::Kind::kFinished};
  event.finish_reason = reason;
  event.output_tokens = 9;
  return event;
}

AnswerShape thinking_caller() {
  AnswerShape shape;
  shape.is_chat = true;
  shape.id = "resp_1";
  shape.model = "m";
  shape.form.calls = chat::find_tool_format("hermes");
  shape.form.has_thoughts = true;
  shape.prompt_ids = {{1, 2, 3}};
  return shape;
}

struct Heard {
  std::string stream;
  json whole;
};
Heard hear_answer(const std::vector<const char*>& pieces, const std::string& reason) {
  Heard out;
  for (const bool streams : {true, false}) {
    const ResponsesRequest call =
        respond(fmt::format(R"({{"input": "a", "stream": {}}})", streams));
    ResponsesAnswer answer(thinking_caller(), call);
    const auto add = [&](const Event& event) {
      answer.add(event);
      if (streams) out.stream += answer.stream_of(event);
    };
    Event started{Event::Kind::kStarted};
    started.cached_tokens = 2;
    add(started);
    for (const char* piece : pieces) add(said(piece));
    add(ended_by(reason));
    EXPECT_TRUE(answer.is_complete());
    if (streams)
      out.stream += answer.stream_end();
    else
      out.whole = json::parse(answer.whole());
  }
  return out;
}

TEST(ResponsesAnswer, HasThoughtsTextAndCallsInOrder) {
  const Heard heard =
      hear_answer({"<think>Hm", "m.", "</think>", "\nI call.\n<tool_",
                   "call>\n{\"name\": \"f\", \"argu", "ments\": {\"a\": 1", "}}\n</tool_call>"},
                  "stop");
  const json& whole = heard.whole;
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_TRUE(whole["incomplete_details"].is_null());
  ASSERT_EQ(whole["output"].size(), 3u) << whole.dump(1);
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hmm.");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "I call.");
  EXPECT_EQ(whole["output"][2]["name"], "f");
  EXPECT_EQ(json::parse(whole["output"][2]["arguments"].get<std::string>()), (json{{"a", 1}}));
  EXPECT_EQ(whole["usage"]["input_tokens"], 3);
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_EQ(whole["usage"]["total_tokens"], 12);

  const auto events = typed_events(heard.stream);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  std::vector<std::string> types;
  for (const std::string& type : types_of(events))
    if (types.empty() || types.back() != type) types.push_back(type);
  EXPECT_EQ(
      types,
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
          "response.output_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.function_call_arguments.delta",
          "response.function_call_arguments.done", "response.output_item.done",
          "response.completed"}));
  const json last = events.back()["response"];
  // Apart from names that are made anew, the stream ends with what is answered whole.
  for (size_t i = 0; i < 3; ++i)
    for (const char* key : {"type", "status", "content", "name", "arguments"})
      EXPECT_EQ(last["output"][i].value(key, json()), whole["output"][i].value(key, json()));
  EXPECT_EQ(last["usage"], whole["usage"]);
  EXPECT_EQ(joined(events, "response.function_call_arguments.delta", "/delta"_json_pointer),
            whole["output"][2]["arguments"]);
  // Each event of an item names the item that was added.
  for (const json& event : events)
    if (event.contains("item_id"))
      EXPECT_EQ(event["item_id"], last["output"][event["output_index"].get<size_t>()]["id"]);
}

TEST(ResponsesAnswer, SaysWhatWasCutShort) {
  const Heard text = hear_answer({"Once"}, "length");
  EXPECT_EQ(text.whole["status"], "incomplete");
  EXPECT_EQ(text.whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(text.whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(typed_events(text.stream).back()["type"], "response.incomplete");
  const Heard call =
      hear_answer({"Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1"}, "length");
  EXPECT_EQ(call.whole["output"][0]["status"], "completed");
  EXPECT_EQ(call.whole["output"][1]["status"], "incomplete");
  // Nothing said is an empty text.
  const Heard nothing = hear_answer({}, "stop");
  EXPECT_EQ(nothing.whole["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(nothing.whole["status"], "completed");
}

TEST(ResponsesAnswer, EndsWithWhyItFailed) {
  for (const bool has_begun : {true, false}) {
    const ResponsesRequest call = respond(R"({"input": "a", "stream": true})");
    ResponsesAnswer answer(thinking_caller(), call);
    std::string stream;
    if (has_begun) {
      const Event event = said("Once");
      answer.add(event);
      stream = answer.stream_of(event);
    }
    stream += answer.stream_error({503, "the engine has stopped", "", "", 0});
    const auto events = typed_events(stream);
    EXPECT_EQ(events.front()["type"], "response.created");
    EXPECT_EQ(events.back()["type"], "response.failed");
    EXPECT_EQ(events.back()["response"]["status"], "failed");
    EXPECT_EQ(events.back()["response"]["error"]["message"], "the engine has stopped");
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
  }
}

}  // namespace
}  // namespace sluice::serve
