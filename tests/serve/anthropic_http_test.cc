// /v1/messages over a real connection.
#include <gtest/gtest.h>
#include <httplib.h>

#include <thread>

#include "tests/serve/event_stream.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

json told_with(const json& more) {
  json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
               {"max_tokens", 12},
               {"temperature", 0}};
  body.update(more);
  return body;
}

TEST(HttpMessages, AnswersWhatAChatAnswers) {
  const RunningServer server;
  const json chat = server.post("/v1/chat/completions", told_with(json::object()));
  const json message = server.post("/v1/messages", told_with(json::object()));
  const std::string text = message["content"][0]["text"];
  EXPECT_EQ(text, chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  const json& usage = message["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(),
            chat["usage"]["prompt_tokens"]);
  const json counted = server.post("/v1/messages/count_tokens",
                                   {{"messages", told_with(json::object())["messages"]}});
  EXPECT_EQ(counted, (json{{"input_tokens", chat["usage"]["prompt_tokens"]}}));

  const auto response = server.client().Post(
      "/v1/messages?beta=true", told_with({{"stream", true}}).dump(), "application/json");
  ASSERT_TRUE(response);
  const auto events = typed_events(response->body);
  EXPECT_EQ(joined(events, "content_block_delta", "/delta/text"_json_pointer), text);
  EXPECT_EQ(events.back()["type"], "message_stop");

  // A stop string is named, and not part of the text.
  const json stopped =
      server.post("/v1/messages", told_with({{"stop_sequences", {"zzz", "girl"}}}));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "girl");
  EXPECT_EQ(stopped["content"][0]["text"], text.substr(0, text.find("girl")));
  // Words put into the assistant's mouth are gone on with.
  const json went_on =
      server.post("/v1/messages", told_with({{"messages",
                                              {{{"role", "user"}, {"content", "Once upon"}},
                                               {{"role", "assistant"}, {"content", " a time"}}}}}));
  EXPECT_EQ(went_on["content"][0]["text"], text);
}

TEST(HttpMessages, CallsToolsAndTakesTheirResults) {
  HttpOptions options;
  options.tool_format = chat::find_tool_format("hermes");
  const RunningServer server(options);
  const json tools = json::parse(R"([{"name": "weather", "input_schema": {"type": "object",
      "properties": {"place": {"type": "string", "maxLength": 8}}, "required": ["place"]}}])");
  const json body = told_with({{"tools", tools},
                               {"tool_choice", {{"type", "tool"}, {"name", "weather"}}},
                               {"max_tokens", 150},
                               {"temperature", 1.2},
                               {"seed", 3}});
  const json message = server.post("/v1/messages", body);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  const json& call = message["content"][0];
  EXPECT_EQ(call["type"], "tool_use");
  EXPECT_TRUE(call["input"]["place"].is_string());
  json streamed = body;
  streamed["stream"] = true;
  const auto response = server.client().Post("/v1/messages", streamed.dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(json::parse(joined(typed_events(response->body), "content_block_delta",
                               "/delta/partial_json"_json_pointer)),
            call["input"]);
  const json again = server.post(
      "/v1/messages", told_with({{"tools", tools},
                                 {"messages",
                                  {{{"role", "user"}, {"content", "Once"}},
                                   {{"role", "assistant"}, {"content", message["content"]}},
                                   {{"role", "user"},
                                    {"content",
                                     {{{"type", "tool_result"},
                                       {"tool_use_id", call["id"]},
                                       {"content", " upon a time"}}}}}}}}));
  EXPECT_EQ(again["content"][0]["type"], "text");
}

TEST(HttpMessages, SaysWhatIsWrongInItsOwnShape) {
  HttpOptions options;
  options.api_keys = {{"secret", 1}};
  options.is_strict = true;
  const RunningServer server(options);
  const auto ask = [&](const json& body, const std::string& key) {
    httplib::Client client = server.client();
    return client.Post("/v1/messages", {{"x-api-key", key}, {"anthropic-version", "2023-06-01"}},
                       body.dump(), "application/json");
  };
  EXPECT_EQ(ask(told_with(json::object()), "secret")->status, 200);
  const std::tuple<json, const char*, int, const char*> cases[] = {
      {told_with(json::object()), "wrong", 401, "authentication_error"},
      {told_with({{"model", "nope"}}), "secret", 404, "not_found_error"},
      {told_with({{"wat", 1}}), "secret", 400, "invalid_request_error"},
      {told_with({{"system", "a"}}), "secret", 400,
       "invalid_request_error"},  // the template's word
      {told_with({{"messages", {{{"role", "user"}, {"content", std::string(30000, 'a')}}}}}),
       "secret", 400, "invalid_request_error"}};
  for (const auto& [body, key, status, type] : cases) {
    const auto response = ask(body, key);
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, status) << response->body;
    const json error = json::parse(response->body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], type);
    EXPECT_FALSE(error["error"]["message"].get<std::string>().empty());
  }
}

TEST(HttpMessages, ACallerThatLeavesTakesItsRequestWithIt) {
  RunningServer server({}, 1000, 1);
  const json body = told_with({{"max_tokens", 240}, {"stream", true}, {"ignore_eos", true}});
  std::vector<std::jthread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/v1/messages";
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
  EXPECT_EQ(server.post("/v1/messages", told_with(json::object()))["usage"]["output_tokens"], 12);
}

}  // namespace
}  // namespace sluice::serve
