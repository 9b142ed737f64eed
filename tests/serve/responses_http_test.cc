// /v1/responses over a real connection.
#include <gtest/gtest.h>
#include <httplib.h>

#include <thread>

#include "tests/serve/event_stream.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

const json kAsked = {{"input", "Once upon a time"}, {"max_output_tokens", 12}, {"temperature", 0}};

json asked_with(const json& more) {
  json body = kAsked;
  body.update(more);
  return body;
}

const json kWeather =
    json::parse(R"({"type": "function", "name": "weather", "parameters": {"type": "object",
    "properties": {"place": {"type": "string", "maxLength": 8}}, "required": ["place"]}})");

TEST(HttpResponses, AnswersWhatAChatAnswers) {
  const RunningServer server;
  const json chat = server.post(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                               {"max_tokens", 12},
                               {"temperature", 0}});
  const json response = server.post("/v1/responses", kAsked);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["model"], "stories");
  EXPECT_EQ(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(response["usage"]["output_tokens"], 12);
  // What was answered can be sent back as it is.
  json input = json::array({{{"role", "user"}, {"content", "Once upon a time"}}});
  for (const json& item : response["output"]) input.push_back(item);
  input.push_back({{"role", "user"}, {"content", " The end"}});
  EXPECT_GT(server.post("/v1/responses", asked_with({{"input", input}}))["usage"]["input_tokens"],
            response["usage"]["input_tokens"]);
}

TEST(HttpResponses, StreamsWhatItWouldAnswerWhole) {
  const RunningServer server;
  const json whole = server.post("/v1/responses", kAsked);
  const auto response = server.client().Post("/v1/responses", asked_with({{"stream", true}}).dump(),
                                             "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  const auto events = typed_events(response->body);
  ASSERT_GT(events.size(), 8u);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  const std::string text = whole["output"][0]["content"][0]["text"];
  EXPECT_EQ(joined(events, "response.output_text.delta", "/delta"_json_pointer), text);
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(events.back()["response"]["usage"]["output_tokens"], 12);
}

TEST(HttpResponses, CallsToolsAndTakesTheirOutput) {
  HttpOptions options;
  options.tool_format = chat::find_tool_format("hermes");
  const RunningServer server(options);
  const json body = asked_with({{"tools", {kWeather}},
                                {"tool_choice", {{"type", "function"}, {"name", "weather"}}},
                                {"max_output_tokens", 150},
                                {"temperature", 1.2},
                                {"seed", 3}});
  const json response = server.post("/v1/responses", body);
  ASSERT_EQ(response["output"].size(), 1u) << response.dump(1);
  const json& call = response["output"][0];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "weather");
  EXPECT_TRUE(json::parse(call["arguments"].get<std::string>()).contains("place"));
  json streamed = body;
  streamed["stream"] = true;
  const auto stream = server.client().Post("/v1/responses", streamed.dump(), "application/json");
  ASSERT_TRUE(stream);
  EXPECT_EQ(joined(typed_events(stream->body), "response.function_call_arguments.delta",
                   "/delta"_json_pointer),
            call["arguments"]);
  json input = json::array({{{"role", "user"}, {"content", "Once"}}, call});
  input.push_back(
      {{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", " upon a time"}});
  const json again =
      server.post("/v1/responses", asked_with({{"input", input}, {"tools", {kWeather}}}));
  EXPECT_EQ(again["output"][0]["type"], "message");
}

TEST(HttpResponses, NumbersCallsWhereTheFormatDoes) {
  HttpOptions options;
  options.tool_format = chat::find_tool_format("kimi_k2");
  const RunningServer server(options);
  json input = json::array({{{"role", "user"}, {"content", "Once"}}});
  for (int turn = 0; turn < 2; ++turn) {
    const json response = server.post("/v1/responses", asked_with({{"input", input},
                                                                   {"tools", {kWeather}},
                                                                   {"tool_choice", "required"},
                                                                   {"parallel_tool_calls", false},
                                                                   {"max_output_tokens", 150}}));
    ASSERT_EQ(response["output"].size(), 1u) << response.dump(1);
    const json& call = response["output"][0];
    EXPECT_EQ(call["call_id"], "functions.weather:" + std::to_string(turn));
    input.push_back(call);
    input.push_back(
        {{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "warm"}});
  }
}

TEST(HttpResponses, AnswersByASchema) {
  const RunningServer server;
  const json schema =
      json::parse(R"({"type": "object", "required": ["a"], "additionalProperties": false,
      "properties": {"a": {"enum": ["dog", "cat"]}}})");
  const json response = server.post(
      "/v1/responses",
      asked_with(
          {{"max_output_tokens", 60},
           {"text", {{"format", {{"type", "json_schema"}, {"name", "p"}, {"schema", schema}}}}}}));
  EXPECT_EQ(response["status"], "completed");
  const std::string text = response["output"][0]["content"][0]["text"];
  EXPECT_TRUE(json::parse(text).at("a") == "dog" || json::parse(text).at("a") == "cat") << text;
}

TEST(HttpResponses, SaysWhatIsWrongInItsOwnWords) {
  HttpOptions options;
  options.is_strict = true;
  const RunningServer server(options);
  const std::pair<json, const char*> cases[] = {
      {{{"input", std::string(30000, 'a')}}, "input"},
      {{{"instructions", "Be short."}}, "input"},  // the template takes no system message
      {{{"model", "nope"}}, "model"},
      {{{"store", true}}, "store"},
      {{{"tools", {kWeather}}}, "tools"},
      {{{"text",
         {{"format",
           {{"type", "json_schema"},
            {"name", "p"},
            {"strict", true},
            {"schema", {{"not", json::object()}}}}}}}},
       "text"}};
  for (const auto& [more, param] : cases) {
    const int status = more.contains("model") ? 404 : 400;
    const json refused = server.post("/v1/responses", asked_with(more), status);
    EXPECT_EQ(refused["error"]["param"], param) << refused.dump();
  }
  for (const char* body : {"", "{", "[1]", "{\"input\": \"a\"", "null"}) {
    const auto response = server.client().Post("/v1/responses", body, "application/json");
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 400) << body;
  }
}

TEST(HttpResponses, ACallerThatLeavesTakesItsRequestWithIt) {
  RunningServer server({}, 1000, 1);
  const json body =
      asked_with({{"max_output_tokens", 240}, {"stream", true}, {"ignore_eos", true}});
  std::vector<std::jthread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/v1/responses";
      request.body = body.dump();
      size_t heard = 0;
      request.content_receiver = [&](const char*, size_t length, uint64_t, uint64_t) {
        return (heard += length) < 2000;
      };
      server.client().send(request);
    });
  callers.clear();
  for (int i = 0; i < 3000 && server.service().running() + server.service().waiting() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server.service().running() + server.service().waiting(), 0);
  EXPECT_EQ(server.post("/v1/responses", kAsked)["usage"]["output_tokens"], 12);
}

}  // namespace
}  // namespace sluice::serve
