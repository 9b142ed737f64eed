#include "src/serve/api_answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/serve/job_line.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

const text::Tokenizer& tokenizer() {
  static const auto loaded =
      text::Tokenizer::load(std::string(SLUICE_FIXTURES) + "/models/stories260k");
  return *loaded;
}

Event text_event(int index, const std::string& text, std::vector<sampling::Choice> choices = {}) {
  Event event;
  event.index = index;
  event.text = text;
  event.choices = std::move(choices);
  return event;
}
Event end_event(int index, const std::string& reason, int64_t tokens) {
  Event event{Event::Kind::kFinished};
  event.index = index;
  event.finish_reason = reason;
  event.output_tokens = tokens;
  return event;
}
sampling::Choice choice(const char* token, float logprob) {
  const int32_t id = *tokenizer().find(token);
  return {id, logprob, {{id, logprob}}};
}

std::vector<json> chunks_of(const std::string& stream) {
  std::vector<json> out;
  for (size_t at = 0; (at = stream.find("data: ", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    const std::string body = stream.substr(at + 6, end - at - 6);
    if (body != "[DONE]") out.push_back(json::parse(body));
    at = end;
  }
  return out;
}

TEST(Answer, WholeChatWithLogprobsAndUsage) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.id = "chatcmpl-1";
  shape.model = "m";
  shape.has_logprobs = true;
  shape.prompt_ids = {{1, 2, 3}};
  Answer answer(shape, tokenizer());
  Event started{Event::Kind::kStarted};
  started.cached_tokens = 2;
  answer.add(started);
  answer.add(text_event(0, "Hel", {choice("▁a", -0.5f)}));
  answer.add(text_event(0, "lo", {choice("▁the", -1.5f)}));
  EXPECT_FALSE(answer.is_complete());
  answer.add(end_event(0, "stop", 2));
  ASSERT_TRUE(answer.is_complete());
  const json whole = json::parse(answer.whole());
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  const json& first = whole["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(first["token"], " a");
  EXPECT_EQ(first["bytes"], (json{0x20, 'a'}));
  EXPECT_FLOAT_EQ(first["top_logprobs"][0]["logprob"].get<float>(), -0.5f);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

// Whole and streamed, an answer with thoughts, text and two calls.
TEST(Answer, HasCallsOfToolsAndThoughts) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.form.calls = chat::find_tool_format("hermes");
  shape.form.has_thoughts = true;
  Answer answer(shape, tokenizer());
  std::string stream;
  const auto add = [&](const Event& event) {
    answer.add(event);
    stream += answer.stream_of(event);
  };
  for (const char* piece : {"<think>Hm", "m.</think>", "\nI call.\n<tool_",
                            "call>{\"name\": \"f\", ", "\"arguments\": {\"a\": ", "1}}</tool_call>",
                            "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"})
    add(text_event(0, piece));
  add(end_event(0, "stop", 20));
  const json choice = json::parse(answer.whole())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& message = choice["message"];
  EXPECT_EQ(message["reasoning_content"], "Hmm.");
  EXPECT_EQ(message["content"], "I call.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"],
            (json{{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(message["tool_calls"][1]["function"], (json{{"name", "g"}, {"arguments", "{}"}}));

  json told = {{"content", ""}, {"reasoning_content", ""}};
  std::vector<json> calls;
  std::string reason;
  for (const json& chunk : chunks_of(stream)) {
    const json& part = chunk["choices"][0];
    for (const char* field : {"content", "reasoning_content"})
      if (part["delta"].contains(field))
        told[field] = told[field].get<std::string>() + part["delta"][field].get<std::string>();
    if (part["delta"].contains("tool_calls"))
      for (const json& call : part["delta"]["tool_calls"]) {
        if (call["index"] == calls.size()) {
          calls.push_back(call);
          continue;
        }
        auto& arguments = calls.at(call["index"])["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    if (!part["finish_reason"].is_null()) reason = part["finish_reason"];
  }
  EXPECT_EQ(told["reasoning_content"], "Hmm.");
  EXPECT_EQ(told["content"], "I call.");
  EXPECT_EQ(reason, "tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i]["function"], message["tool_calls"][i]["function"]);
    EXPECT_EQ(calls[i]["id"], message["tool_calls"][i]["id"]);
  }
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

// Ids that go on where the conversation is, whatever number the model has written.
TEST(Answer, NumbersCallsWhereTheFormatDoes) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.form.calls = chat::find_tool_format("kimi_k2");
  shape.form.calls_before = 3;
  Answer answer(shape, tokenizer());
  std::string stream;
  for (const char* piece :
       {"So. <|tool_calls_sec", "tion_begin|><|tool_call_begin|>functions.get",
        ".it:3<|tool_call_argument_begin|>{\"a\"", ": 1}<|tool_call_end|><|tool",
        "_call_begin|>functions.f:9<|tool_call_argument_begin|>{}<|tool_call_end",
        "|><|tool_calls_section_end|>"}) {
    answer.add(text_event(0, piece));
    stream += answer.stream_of(text_event(0, piece));
  }
  answer.add(end_event(0, "stop", 9));
  stream += answer.stream_of(end_event(0, "stop", 9));
  const json choice = json::parse(answer.whole())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "So.");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["id"], "functions.get.it:3");
  EXPECT_EQ(calls[0]["function"], (json{{"name", "get.it"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(calls[1]["id"], "functions.f:4");
  std::vector<json> told;
  for (const json& chunk : chunks_of(stream))
    for (const json& call : chunk["choices"][0]["delta"].value("tool_calls", json::array()))
      if (call.contains("id")) told.push_back(call);
  ASSERT_EQ(told.size(), 2u);
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i]["index"], i);
    EXPECT_EQ(told[i]["id"], calls[i]["id"]);
    EXPECT_EQ(told[i]["function"]["name"], calls[i]["function"]["name"]);
  }
}

// A line of a batch likewise.
TEST(Answer, OfALineNumbersCallsWhereTheFormatDoes) {
  chat::MessageForm form;
  form.calls = chat::find_tool_format("kimi_k2");
  form.calls_before = 9;
  jobs::Request request;
  request.is_chat = true;
  jobs::Completion completion;
  completion.finish_reason = "stop";
  completion.text =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_call_begin|>g<|tool_call_argument_begin|>{\"a\": "
      "1}<|tool_call_end|>";
  read_answer(request, form, completion);
  EXPECT_EQ(completion.finish_reason, "tool_calls");
  const json calls = json::parse(completion.message)["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["id"], "functions.f:9");
  EXPECT_EQ(calls[1]["id"], "functions.g:10");
  EXPECT_EQ(calls[1]["function"], (json{{"name", "g"}, {"arguments", "{\"a\": 1}"}}));
}

// Mistral's own ids; no text; cut short by max_tokens.
TEST(Answer, HasACallThatWasCutShort) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.form.calls = chat::find_tool_format("mistral");
  Answer answer(shape, tokenizer());
  answer.add(text_event(0, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a"));
  answer.add(end_event(0, "length", 9));
  const json choice = json::parse(answer.whole())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a");
}

TEST(Answer, ChatStreamsRoleTextReasonUsage) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.includes_usage = true;
  shape.prompt_ids = {{1}};
  Answer answer(shape, tokenizer());
  std::string stream;
  for (const Event& event : {Event{Event::Kind::kStarted}, text_event(0, "a"), text_event(0, "b"),
                             end_event(0, "length", 2)}) {
    answer.add(event);
    stream += answer.stream_of(event);
  }
  stream += answer.stream_end();
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  const auto chunks = chunks_of(stream);
  ASSERT_EQ(chunks.size(), 5u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "a");
  EXPECT_TRUE(chunks[1]["usage"].is_null());
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(chunks[3]["choices"][0]["delta"].empty());
  EXPECT_TRUE(chunks[4]["choices"].empty());
  EXPECT_EQ(chunks[4]["usage"]["total_tokens"], 3);
}

TEST(Answer, EchoScoresThePromptOnceForAllItsSamples) {
  AnswerShape shape;
  shape.samples = shape.best_of = 2;
  shape.has_logprobs = shape.echoes = true;
  shape.prompt_texts = {"the a"};
  shape.prompt_ids = {{1, 2}};
  Answer answer(shape, tokenizer());
  Event prompt{Event::Kind::kPrompt};
  prompt.prompt_tokens = {{*tokenizer().find("▁the"), NAN, {}},
                          {*tokenizer().find("▁a"), -2.0f, {}}};
  answer.add(prompt);
  answer.add(text_event(0, " a", {choice("▁a", -0.25f)}));
  answer.add(text_event(1, " the", {choice("▁the", -INFINITY)}));
  answer.add(end_event(0, "length", 1));
  answer.add(end_event(1, "length", 1));
  const json whole = json::parse(answer.whole());
  EXPECT_EQ(whole["choices"][0]["text"], "the a a");
  EXPECT_EQ(whole["choices"][1]["text"], "the a the");
  const json& logprobs = whole["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (json{" the", " a", " a"}));
  EXPECT_EQ(logprobs["token_logprobs"], (json{nullptr, -2.0, -0.25}));
  EXPECT_EQ(logprobs["text_offset"], (json{0, 3, 5})) << "of the text, not of the tokens' names";
  for (size_t i = 1; i < 3; ++i) {
    const std::string name = logprobs["tokens"][i];
    EXPECT_EQ(whole["choices"][0]["text"].get<std::string>().substr(logprobs["text_offset"][i],
                                                                    name.size()),
              name);
  }
  EXPECT_EQ(whole["choices"][1]["logprobs"]["token_logprobs"][2], -9999.0)
      << "JSON has no infinity";
}

// In a stream each sample begins with the prompt, and its tokens stand behind it.
TEST(Answer, StreamsEchoTheSameOffsets) {
  AnswerShape shape;
  shape.samples = shape.best_of = 2;
  shape.has_logprobs = shape.echoes = true;
  shape.prompt_texts = {"the a"};
  shape.prompt_ids = {{1, 2}};
  Answer answer(shape, tokenizer());
  Event prompt{Event::Kind::kPrompt};
  prompt.prompt_tokens = {{*tokenizer().find("▁the"), NAN, {}},
                          {*tokenizer().find("▁a"), -2.0f, {}}};
  std::string streamed;
  const auto tell = [&](const Event& event) {
    answer.add(event);
    streamed += answer.stream_of(event);
  };
  tell(prompt);
  tell(text_event(0, " a", {choice("▁a", -0.25f)}));
  tell(text_event(1, " the", {choice("▁the", -1)}));
  std::vector<std::string> texts(2);
  std::vector<std::vector<int64_t>> offsets(2);
  for (size_t at = 0; (at = streamed.find("data: {", at)) != std::string::npos; ++at) {
    const json choice =
        json::parse(streamed.substr(at + 6, streamed.find("\n\n", at) - at - 6))["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
    if (!choice["logprobs"].is_null())
      for (const json& offset : choice["logprobs"]["text_offset"])
        offsets[choice["index"]].push_back(offset);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"the a a", "the a the"}));
  EXPECT_EQ(offsets[0], (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(offsets[1], (std::vector<int64_t>{5}));
}

TEST(Answer, BestOfAnswersTheLikeliestByMeanLogprob) {
  AnswerShape shape;
  shape.samples = 1;
  shape.best_of = 3;
  shape.prompts = 2;
  shape.prompt_ids = {{1}, {2}};
  Answer answer(shape, tokenizer());
  const float means[] = {-2, -1, -3, -1, -5, -0.5f};
  for (int i = 0; i < 6; ++i) {
    answer.add(text_event(i, std::to_string(i), {choice("▁a", means[i])}));
    answer.add(end_event(i, "stop", 1));
  }
  const json whole = json::parse(answer.whole());
  ASSERT_EQ(whole["choices"].size(), 2u);
  EXPECT_EQ(whole["choices"][0]["text"], "1");
  EXPECT_EQ(whole["choices"][1]["text"], "5");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 6) << "all that was computed";
}

}  // namespace
}  // namespace sluice::serve
