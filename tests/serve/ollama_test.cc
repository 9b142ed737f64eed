// Bodies of Ollama's routes as chats and completions, and answers as lines; without a server.
#include <gtest/gtest.h>

#include "src/serve/ollama_answer.h"
#include "src/serve/ollama_request.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = OllamaRequest::Kind;

OllamaModel small_model() {
  OllamaModel model;
  model.vocab_size = 100;
  model.context_tokens = 256;
  model.has_template = model.has_thoughts = true;
  return model;
}
OllamaRequest ollama_chat(const std::string& body, const OllamaModel& model = small_model()) {
  return parse_ollama_chat(body, {}, model);
}
OllamaRequest ollama_generate(const std::string& body, const OllamaModel& model = small_model()) {
  return parse_ollama_generate(body, {}, model);
}

template <typename Parse>
ApiError ollama_error(const Parse& parse, const std::string& body) {
  try {
    parse(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error;
  }
  ADD_FAILURE() << "taken: " << body;
  return {};
}

TEST(OllamaRequest, ReadsAChatAndItsOptions) {
  const OllamaRequest call = ollama_chat(
      R"({"model": "m:latest", "messages": [{"role": "user", "content": "Hello", "images": []}],
      "keep_alive": "5m", "format": "", "think": false, "tools": [], "options": {"num_predict": 7, "temperature": 0.25, "top_k": 3,
      "top_p": 0.5, "seed": 9, "stop": ["x"], "repeat_penalty": 1.5, "num_ctx": 256, "num_thread": 8, "mirostat": 2,
      "mirostat_tau": 4, "repeat_last_n": -1, "presence_penalty": 0.5, "typical_p": 0.5, "tfs_z": 1.0, "use_mmap": null}})");
  ASSERT_EQ(call.kind, Kind::kChat);
  EXPECT_TRUE(call.chat.streams) << "unless told otherwise";
  EXPECT_EQ(call.chat.params.max_tokens, 7);
  EXPECT_EQ(call.chat.params.seed, 9u);
  EXPECT_EQ(call.chat.params.stop, std::vector<std::string>{"x"});
  EXPECT_FLOAT_EQ(call.chat.params.repetition_penalty, 1.5f);
  EXPECT_FLOAT_EQ(call.chat.params.presence_penalty, 0.5f);
  EXPECT_FLOAT_EQ(call.chat.params.typical_p, 0.5f);
  EXPECT_EQ(call.chat.params.mirostat, 2);
  EXPECT_FLOAT_EQ(call.chat.params.mirostat_tau, 4);
  EXPECT_EQ(call.chat.variables["enable_thinking"], false);
  for (const char* all : {"-1", "-2"})
    EXPECT_FALSE(
        ollama_chat(
            R"({"messages": [{"role": "user", "content": "a"}], "stream": false, "keep_alive": -1,
        "options": {"num_predict": )" +
            std::string(all) + "}}")
            .chat.has_max_tokens);
  EXPECT_EQ(ollama_chat(R"({"model": "m"})").kind, Kind::kLoad);
  EXPECT_EQ(ollama_chat(R"({"messages": [], "keep_alive": 300})").kind, Kind::kLoad);
}

TEST(OllamaRequest, GivesResultsToTheCallsTheyAnswer) {
  const OllamaRequest call = ollama_chat(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "thinking": "Hm.", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {}}},
      {"function": {"index": 1, "name": "sun", "arguments": {"a": 1}}}, {"id": "abc", "function": {"name": "sun", "arguments": {}}}]},
    {"role": "tool", "tool_name": "sun", "content": "up"}, {"role": "tool", "tool_call_id": "abc", "content": "down"},
    {"role": "tool", "content": "noon"}]})");
  const ordered_json& said = call.chat.messages;
  EXPECT_EQ(said[1]["reasoning_content"], "Hm.");
  EXPECT_EQ(said[1]["tool_calls"][1]["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(said[1]["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(said[2]["tool_call_id"], said[1]["tool_calls"][1]["id"]);
  EXPECT_EQ(said[3]["tool_call_id"], "abc");
  EXPECT_EQ(said[3]["name"], "sun");
  EXPECT_EQ(said[4]["tool_call_id"], said[1]["tool_calls"][0]["id"]);
  EXPECT_EQ(said[4]["name"], "clock");
}

TEST(OllamaRequest, ReadsPrompts) {
  const OllamaRequest chat = ollama_generate(R"({"prompt": "a", "system": "b", "suffix": "",
      "format": {"type": "object"}, "context": []})");
  ASSERT_EQ(chat.kind, Kind::kChat);
  EXPECT_EQ(chat.chat.messages.size(), 2u);
  EXPECT_EQ(chat.chat.params.guide.kind, sampling::GuideKind::kJsonSchema);
  EXPECT_EQ(chat.chat.guide_field, "format");
  const OllamaRequest raw = ollama_generate(R"({"prompt": "a", "raw": true, "format": "json"})");
  ASSERT_EQ(raw.kind, Kind::kPlain);
  EXPECT_EQ(std::get<std::string>(raw.plain.prompts.at(0)), "a");
  EXPECT_EQ(raw.plain.params.guide.kind, sampling::GuideKind::kJson);
  EXPECT_TRUE(raw.plain.fills_context && raw.plain.streams && !raw.plain.has_max_tokens);
  OllamaModel plain = small_model();
  plain.has_template = false;
  EXPECT_EQ(ollama_generate(R"({"prompt": "a"})", plain).kind, Kind::kPlain);
  EXPECT_EQ(ollama_generate(R"({"model": "m", "prompt": ""})").kind, Kind::kLoad);
}

TEST(OllamaRequest, RefusesByName) {
  const std::string asked = R"({"messages": [{"role": "user", "content": "a"}], )";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"messages": "a"})", "messages"},
      {R"({"messages": ["a"]})", "messages"},
      {R"({"messages": [{"content": "a"}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": "a", "wat": 1}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": "a", "images": ["x"]}]})", "images"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "n", "arguments": "{}"}}]}]})",
       "messages"},
      {asked + R"("options": []})", "options"},
      {asked + R"("options": {"num_predict": 0}})", "options.num_predict"},
      {asked + R"("options": {"num_predict": 1e99}})", "options.num_predict"},
      {asked + R"("options": {"num_predict": -3}})", "options.num_predict"},
      {asked + R"("options": {"temperature": "hot"}})", "options.temperature"},
      {asked + R"("options": {"repeat_penalty": 0}})", "options.repeat_penalty"},
      {asked + R"("options": {"num_ctx": 257}})", "options"},
      {asked + R"("options": {"num_ctx": 99999999999999999999}})", "options"},
      {asked + R"("options": {"repeat_last_n": 64}})", "options"},
      {asked + R"("options": {"mirostat": 3}})", "options.mirostat"},
      {asked + R"("options": {"typical_p": 2}})", "options.typical_p"},
      {asked + R"("options": {"tfs_z": 0.5}})", "options"},
      {asked + R"("options": {"num_thread": "all"}})", "options"},
      {asked + R"("options": {"wat": 1}})", "options"},
      {asked + R"("format": "xml"})", "format"},
      {asked + R"("format": 7})", "format"},
      {asked + R"("keep_alive": 0})", "keep_alive"},
      {asked + R"("keep_alive": "0s"})", "keep_alive"},
      {asked + R"("keep_alive": true})", "keep_alive"},
      {asked + R"("tools": {}})", "tools"},
      {asked + R"("tools": [{"name": "n"}]})", "tools"},
      {asked + R"("think": 7})", "think"},
      {asked + R"("logprobs": 1})", "logprobs"},
      {asked + R"("logprobs": true, "top_logprobs": 21})", "top_logprobs"},
      {asked + R"("stream": "yes"})", "stream"},
      {asked + R"("max_tokens": 7})", "max_tokens"},
      {asked + R"("wat": 1})", "wat"}};
  const auto chat = [](const std::string& body) { return ollama_chat(body); };
  for (const auto& [body, param] : cases) EXPECT_EQ(ollama_error(chat, body).param, param) << body;
  EXPECT_TRUE(ollama_error(chat, asked + R"("options": {"num_predict": 0}})")
                  .message.starts_with("options.num_predict"));
  const std::pair<std::string, const char*> prompts[] = {
      {R"({"prompt": 7})", "prompt"},
      {R"({"prompt": "a", "suffix": "b"})", "suffix"},
      {R"({"prompt": "a", "template": "{{ .Prompt }}"})", "template"},
      {R"({"prompt": "a", "context": [1, 2]})", "context"},
      {R"({"prompt": "a", "images": ["x"]})", "images"},
      {R"({"prompt": "a", "raw": true, "system": "b"})", "system"},
      {R"({"prompt": "a", "raw": 1})", "raw"}};
  const auto generate = [](const std::string& body) { return ollama_generate(body); };
  for (const auto& [body, param] : prompts)
    EXPECT_EQ(ollama_error(generate, body).param, param) << body;
  std::string many = R"({"messages": [{"role": "assistant", "tool_calls": [)";
  for (int i = 0; i < 129; ++i)
    many += (i ? "," : "") + std::string(R"({"function": {"name": "f", "arguments": {}}})");
  EXPECT_EQ(ollama_error(chat, many + "]}]}").param, "messages");
  OllamaModel thoughtless = small_model();
  thoughtless.has_thoughts = false;
  const auto think = [&](const std::string& body) { return ollama_chat(body, thoughtless); };
  EXPECT_EQ(ollama_error(think, asked + R"("think": true})").param, "think");
  think(asked + R"("think": false})");
}

std::vector<json> json_lines(const std::string& stream) {
  std::vector<json> out;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find('\n', at);
    out.push_back(json::parse(stream.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

TEST(OllamaAnswer, HasThoughtsTextAndCalls) {
  const auto tokenizer = text::Tokenizer::load(testing::fixture_model("stories260k"));
  for (const auto route : {OllamaAnswer::Route::kChat, OllamaAnswer::Route::kGenerate}) {
    AnswerShape shape;
    shape.is_chat = true;
    shape.model = "m";
    shape.form.has_thoughts = true;
    const bool is_chat = route == OllamaAnswer::Route::kChat;
    if (is_chat) shape.form.calls = chat::find_tool_format("hermes");
    shape.prompt_ids = {{1, 2, 3}};
    std::string stream;
    json whole;
    for (const bool streams : {true, false}) {
      OllamaAnswer answer(shape, streams, route, *tokenizer);
      const auto add = [&](const Event& event) {
        answer.add(event);
        if (streams) stream += answer.sign_of_life() + answer.stream_of(event);
      };
      add({Event::Kind::kStarted});
      for (const char* piece :
           {"<think>Hm", "m.</think>", "\nI call.\n", "<tool_", "call>\n{\"name\": \"f\", \"argu",
            "ments\": {\"a\": 1", "}}\n</tool_call>"}) {
        Event event;
        event.text = piece;
        if (is_chat || std::string_view(piece).find('{') == std::string_view::npos) add(event);
      }
      Event end{Event::Kind::kFinished};
      end.finish_reason = "stop";
      end.output_tokens = 9;
      add(end);
      if (streams)
        stream += answer.stream_end();
      else
        whole = json::parse(answer.whole());
    }
    const auto lines = json_lines(stream);
    std::string text, thought;
    json calls = json::array();
    for (const json& line : lines) {
      EXPECT_EQ(line["done"], &line == &lines.back());
      const json& of = is_chat ? line["message"] : line;
      text += of[is_chat ? "content" : "response"].get<std::string>();
      thought += of.value("thinking", "");
      for (const json& call : of.value("tool_calls", json::array())) calls.push_back(call);
    }
    const json& all = is_chat ? whole["message"] : whole;
    EXPECT_EQ(thought, "Hmm.");
    EXPECT_EQ(all["thinking"], thought);
    EXPECT_EQ(all[is_chat ? "content" : "response"], text);
    EXPECT_EQ(whole["done_reason"], "stop");
    EXPECT_EQ(whole["prompt_eval_count"], 3);
    EXPECT_EQ(lines.back()["eval_count"], 9);
    if (!is_chat) continue;
    EXPECT_EQ(text, "I call.");
    ASSERT_EQ(calls.size(), 1u) << stream;
    EXPECT_EQ(calls[0]["function"]["arguments"], (json{{"a", 1}}));
    EXPECT_EQ(all["tool_calls"][0]["function"], calls[0]["function"]);
  }
}

TEST(OllamaAnswer, LeavesOutACallThatWasCutShort) {
  AnswerShape shape;
  shape.is_chat = true;
  shape.form.calls = chat::find_tool_format("hermes");
  shape.prompt_ids = {{1}};
  const auto tokenizer = text::Tokenizer::load(testing::fixture_model("stories260k"));
  OllamaAnswer answer(shape, true, OllamaAnswer::Route::kChat, *tokenizer);
  std::string stream;
  Event event;
  event.text = "Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1";
  answer.add(event);
  stream += answer.stream_of(event);
  Event end{Event::Kind::kFinished};
  end.finish_reason = "length";
  answer.add(end);
  stream += answer.stream_of(end) + answer.stream_end();
  for (const json& line : json_lines(stream)) EXPECT_FALSE(line["message"].contains("tool_calls"));
  EXPECT_EQ(json_lines(stream).back()["done_reason"], "length");
  EXPECT_EQ(json_lines(answer.stream_error({503, "gone", "", "", 0})).back(),
            (json{{"error", "gone"}}));
}

}  // namespace
}  // namespace sluice::serve
