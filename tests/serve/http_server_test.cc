// The server over a real connection: forms of answers, errors, streams, callers that leave.
#include "src/serve/http_server.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;
using Server = RunningServer;

const json kGreedy = {{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}};
const std::string kStory = ", there was a little girl named Lily. S";

json with(json body, const json& more) {
  body.update(more);
  return body;
}

const json kTool = json::parse(R"({"type": "function", "function": {"name": "weather", "parameters":
    {"type": "object", "properties": {"place": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
     "required": ["place", "days"]}}})");
const json kClock = json::parse(R"({"type": "function", "function": {"name": "clock"}})");

HttpOptions with_tools(const char* format) {
  HttpOptions options;
  options.tool_format = chat::find_tool_format(format);
  return options;
}

// The last tokens alone are the prompt: as if they had been sent.
TEST(HttpServer, GoesBySeveralNamesOrByAny) {
  const json ask{{"prompt", "Once"}, {"max_tokens", 2}, {"temperature", 0}};
  const auto named = [&](const char* name) {
    json body = ask;
    body["model"] = name;
    return body;
  };
  HttpOptions options;
  options.aliases = {"gpt-4o-mini", "qwen3:8b"};
  {
    const RunningServer server(options);
    EXPECT_EQ(server.post("/v1/completions", named("gpt-4o-mini"))["model"], "stories");
    const json refused = server.post("/v1/completions", named("gpt-4o"), 404);
    EXPECT_NE(refused["error"]["message"].get<std::string>().find("\"qwen3:8b\""),
              std::string::npos);
    const auto models = json::parse(server.client().Get("/v1/models")->body);
    ASSERT_EQ(models["data"].size(), 3u);
    EXPECT_EQ(models["data"][2]["id"], "qwen3:8b");
    EXPECT_FALSE(models["data"][2].contains("parent"));
    EXPECT_EQ(json::parse(server.client().Get("/v1/models/gpt-4o-mini")->body)["id"],
              "gpt-4o-mini");
    EXPECT_EQ(json::parse(server.client().Get("/api/tags")->body)["models"][2]["name"], "qwen3:8b");
    server.post("/api/generate", {{"model", "qwen3:8b"}, {"prompt", "a"}, {"stream", false}});
    server.post("/api/show", {{"model", "qwen3:8b"}});
  }
  options.takes_any_name = true;
  const RunningServer server(options);
  EXPECT_EQ(server.post("/v1/completions", named("gpt-4o"))["model"], "stories");
  EXPECT_EQ(server.post("/api/generate",
                        {{"model", "llama3.2:latest"}, {"prompt", "a"}, {"stream", false}})["done"],
            true);
}

TEST(HttpServer, KeepsTheLastTokensOfAPrompt) {
  const Server server;
  const std::string text = "Lily liked to play outside. Once upon a time";
  const json all = server.post("/tokenize", {{"prompt", text}})["tokens"];
  const json asked = {{"max_tokens", 12}, {"temperature", 0}};
  for (const int kept : {1, 5, static_cast<int>(all.size()), 200}) {
    const json ids(all.end() - std::min<int>(kept, static_cast<int>(all.size())), all.end());
    const json truncated = server.post(
        "/v1/completions", with(asked, {{"prompt", text}, {"truncate_prompt_tokens", kept}}));
    const json sent = server.post("/v1/completions", with(asked, {{"prompt", json(ids)}}));
    EXPECT_EQ(truncated["choices"][0]["text"], sent["choices"][0]["text"]) << kept;
    EXPECT_EQ(truncated["usage"]["prompt_tokens"], sent["usage"]["prompt_tokens"]) << kept;
  }
  // More than the context holds: what there is room for.
  std::string long_text;
  for (int i = 0; i < 300; ++i) long_text += "Once upon a time ";
  server.post("/v1/completions", with(asked, {{"prompt", long_text}}), 400);
  const json fitted = server.post(
      "/v1/completions", with(asked, {{"prompt", long_text}, {"truncate_prompt_tokens", -1}}));
  EXPECT_EQ(fitted["usage"]["prompt_tokens"], 256 - 12);
  const json chat = {{"messages", {{{"role", "user"}, {"content", long_text}}}},
                     {"truncate_prompt_tokens", 7}};
  EXPECT_EQ(server.post("/v1/chat/completions", with(asked, chat))["usage"]["prompt_tokens"], 7);
  const json echoed = server.post(
      "/v1/completions",
      with(asked,
           {{"prompt", text}, {"truncate_prompt_tokens", 3}, {"echo", true}, {"max_tokens", 1}}));
  EXPECT_FALSE(echoed["choices"][0]["text"].get<std::string>().starts_with("Lily"));
}

TEST(HttpServer, TakesTemplatesOfRequestsWhereItIsToldTo) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                     {"chat_template", "{{ messages[0].content }}, there"},
                     {"max_tokens", 4},
                     {"temperature", 0}};
  const json refused = Server().post("/v1/chat/completions", body, 400);
  EXPECT_EQ(refused["error"]["param"], "chat_template");
  HttpOptions options;
  options.takes_templates = true;
  const Server server(options);
  const json answer = server.post("/v1/chat/completions", body);
  const json plain = server.post("/v1/completions", {{"prompt", "Once upon a time, there"},
                                                     {"add_special_tokens", false},
                                                     {"max_tokens", 4},
                                                     {"temperature", 0}});
  EXPECT_EQ(answer["choices"][0]["message"]["content"], plain["choices"][0]["text"]);
  EXPECT_EQ(server.post("/tokenize", body)["count"], answer["usage"]["prompt_tokens"]);
}

TEST(HttpServer, CallsTools) {
  for (const char* format : {"hermes", "mistral", "llama3_json", "deepseek_v31", "kimi_k2"}) {
    SCOPED_TRACE(format);
    const Server server(with_tools(format));
    for (int seed = 0; seed < 5; ++seed) {
      const json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                         {"tools", {kTool}},
                         {"tool_choice", "required"},
                         {"parallel_tool_calls", false},
                         {"seed", seed},
                         {"temperature", 1.2},
                         {"max_tokens", 150}};
      const json choice = server.post("/v1/chat/completions", body)["choices"][0];
      ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice.dump();
      EXPECT_TRUE(choice["message"]["content"].is_null());
      ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
      const json& function = choice["message"]["tool_calls"][0]["function"];
      EXPECT_EQ(function["name"], "weather");
      const json arguments = json::parse(function["arguments"].get<std::string>());
      EXPECT_LE(arguments.at("place").get<std::string>().size(), 8u * 4);
      EXPECT_GE(arguments.at("days").get<int>(), 1);
      EXPECT_LE(arguments.at("days").get<int>(), 9);

      json streamed = body;
      streamed["stream"] = true;
      const auto response =
          server.client().Post("/v1/chat/completions", streamed.dump(), "application/json");
      ASSERT_TRUE(response);
      std::string told;
      for (size_t at = 0; (at = response->body.find("data: {", at)) != std::string::npos; ++at) {
        const json chunk =
            json::parse(response->body.substr(at + 6, response->body.find("\n\n", at) - at - 6));
        const json& delta = chunk["choices"][0]["delta"];
        if (delta.contains("tool_calls"))
          told += delta["tool_calls"][0]["function"]["arguments"].get<std::string>();
      }
      EXPECT_EQ(told, function["arguments"]);
    }
  }
}

// The names that tools had before they were tools, asked for and answered.
TEST(HttpServer, CallsFunctions) {
  const Server server(with_tools("hermes"));
  json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
               {"functions", {kClock["function"], kTool["function"]}},
               {"function_call", {{"name", "weather"}}},
               {"seed", 3},
               {"max_tokens", 150}};
  const json choice = server.post("/v1/chat/completions", body)["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "function_call") << choice.dump();
  const json& call = choice["message"]["function_call"];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(call["name"], "weather");
  EXPECT_TRUE(json::parse(call["arguments"].get<std::string>()).contains("place"));
  // By today's names it is the same call.
  json today = body;
  today.erase("functions");
  today.erase("function_call");
  today["tools"] = {kClock, kTool};
  today["tool_choice"] = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  today["parallel_tool_calls"] = false;
  EXPECT_EQ(server.post("/v1/chat/completions",
                        today)["choices"][0]["message"]["tool_calls"][0]["function"],
            call);
  json streamed = body;
  streamed["stream"] = true;
  const auto response =
      server.client().Post("/v1/chat/completions", streamed.dump(), "application/json");
  std::string name, arguments, reason;
  for (size_t at = 0; (at = response->body.find("data: {", at)) != std::string::npos; ++at) {
    const json chunk =
        json::parse(response->body.substr(at + 6, response->body.find("\n\n", at) - at - 6));
    const json& of = chunk["choices"][0];
    if (of["delta"].contains("function_call")) {
      name += of["delta"]["function_call"].value("name", "");
      arguments += of["delta"]["function_call"].value("arguments", "");
    }
    if (of["finish_reason"].is_string()) reason = of["finish_reason"];
  }
  EXPECT_EQ(name, "weather");
  EXPECT_EQ(arguments, call["arguments"]);
  EXPECT_EQ(reason, "function_call");
  // What was called goes back, with its result.
  body["messages"].push_back(choice["message"]);
  body["messages"].push_back({{"role", "function"}, {"name", "weather"}, {"content", "rain"}});
  body["function_call"] = "none";
  body["max_tokens"] = 5;
  EXPECT_EQ(server.post("/v1/chat/completions", body)["choices"][0]["finish_reason"], "length");
  const auto refused = [&](json changed, const char* param) {
    EXPECT_EQ(server.post("/v1/chat/completions", changed, 400)["error"]["param"], param);
  };
  refused(with(body, {{"tools", {kClock}}}), "functions");
  refused(with(body, {{"function_call", "must"}}), "function_call");
  refused(with(body, {{"functions", "a"}}), "functions");
  refused(with(body, {{"messages", {{{"role", "function"}, {"content", "x"}}}}}), "messages");
}

// Ids count over the whole conversation, in one answer and from turn to turn.
TEST(HttpServer, NumbersCallsOverTheConversation) {
  const Server server(with_tools("kimi_k2"));
  json body = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
               {"tools", {kClock, kTool}},
               {"tool_choice", {{"type", "function"}, {"function", {{"name", "clock"}}}}},
               {"parallel_tool_calls", false},
               {"temperature", 0},
               {"max_tokens", 150}};
  for (int turn = 0; turn < 3; ++turn) {
    const json message = server.post("/v1/chat/completions", body)["choices"][0]["message"];
    ASSERT_EQ(message["tool_calls"].size(), 1u) << message.dump();
    const std::string id = "functions.clock:" + std::to_string(turn);
    EXPECT_EQ(message["tool_calls"][0]["id"], id);
    body["messages"].push_back(message);
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "noon"}});
  }
}

TEST(HttpServer, OffersToolsAndAnswersInText) {
  const Server server(with_tools("hermes"));
  const json plain = {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                      {"temperature", 0},
                      {"max_tokens", 12},
                      {"tools", {kTool, kClock}}};
  const json offered = server.post("/v1/chat/completions", plain)["choices"][0];
  EXPECT_EQ(offered["finish_reason"], "length");
  EXPECT_FALSE(offered["message"].contains("tool_calls"));
  EXPECT_EQ(server.post("/v1/chat/completions",
                        with(plain, {{"tool_choice", "none"}}))["choices"][0]["message"],
            offered["message"])
      << "a guide that waits changes nothing";
  const json named = server.post(
      "/v1/chat/completions",
      with(plain, {{"max_tokens", 100},
                   {"tool_choice", {{"type", "function"}, {"function", {{"name", "clock"}}}}}}));
  EXPECT_EQ(named["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "clock");
  // What was called goes back to the template, with the tool's answer.
  const json again = server.post(
      "/v1/chat/completions",
      with(plain,
           {{"messages",
             {{{"role", "user"}, {"content", "Once"}},
              {{"role", "assistant"},
               {"content", ""},
               {"tool_calls",
                {{{"id", "call_1"},
                  {"type", "function"},
                  {"function", {{"name", "clock"}, {"arguments", "{\"a\": 1}"}}}}}}},
              {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", " upon a time"}}}}}));
  EXPECT_EQ(again["choices"][0]["finish_reason"], "length");
  json strict = kTool;
  strict["function"]["strict"] = true;
  strict["function"]["parameters"] = {{"type", "object"}, {"not", {{"minLength", 3}}}};
  const json refused = server.post("/v1/chat/completions", with(plain, {{"tools", {strict}}}), 400);
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("\"not\""), std::string::npos);
}

// What guides don't know of a schema is said, in a header and beside the answer; the rest holds.
TEST(HttpServer, SaysWhatAGuideDoesNotHold) {
  const Server server(with_tools("hermes"));
  json tool = kTool;
  tool["function"]["parameters"]["properties"]["days"]["not"] = {{"const", 3}};
  const json call{{"messages", {{{"role", "user"}, {"content", "Lily"}}}},
                  {"max_tokens", 100},
                  {"temperature", 0},
                  {"tool_choice", "required"},
                  {"parallel_tool_calls", false},
                  {"tools", {tool}}};
  auto response = server.client().Post("/v1/chat/completions", call.dump(), "application/json");
  ASSERT_EQ(response->status, 200) << response->body;
  EXPECT_NE(response->get_header_value("X-Sluice-Warning").find("#/properties/days: not"),
            std::string::npos);
  const json answer = json::parse(response->body);
  ASSERT_EQ(answer["warnings"].size(), 1u) << answer;
  const json arguments = json::parse(
      answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
  EXPECT_TRUE(arguments["place"].is_string());
  EXPECT_TRUE(arguments["days"].is_number_integer()) << "names, types and what is required stay";
  json streamed = call;
  streamed["stream"] = true;
  response = server.client().Post("/v1/chat/completions", streamed.dump(), "application/json");
  EXPECT_NE(response->get_header_value("X-Sluice-Warning").find("not"), std::string::npos);
  response = server.client().Post("/v1/chat/completions", with(call, {{"tools", {kTool}}}).dump(),
                                  "application/json");
  EXPECT_EQ(response->get_header_value("X-Sluice-Warning"), "");
  EXPECT_FALSE(json::parse(response->body).contains("warnings"));
}

// A schema for the answer beside tools: a call, or else JSON by the schema, never free text.
TEST(HttpServer, ToolsBesideAResponseFormat) {
  const Server server(with_tools("hermes"));
  const json schema = json::parse(
      R"({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false})");
  for (const json& format :
       {json{{"type", "json_schema"},
             {"json_schema", {{"name", "a"}, {"strict", true}, {"schema", schema}}}},
        json{{"type", "json_object"}}})
    for (int seed = 0; seed < 8; ++seed) {
      const json answer = server.post("/v1/chat/completions",
                                      {{"messages", {{{"role", "user"}, {"content", "Lily"}}}},
                                       {"max_tokens", 120},
                                       {"seed", seed},
                                       {"tools", {kTool}},
                                       {"response_format", format}});
      const json& choice = answer["choices"][0];
      if (choice["finish_reason"] == "length") continue;
      if (choice["finish_reason"] == "tool_calls") {
        EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
        continue;
      }
      const json text = json::parse(choice["message"]["content"].get<std::string>());
      EXPECT_TRUE(text.is_object());
      if (format["type"] == "json_schema") {
        EXPECT_TRUE(text["ok"].is_boolean()) << text;
      }
    }
  // Who must call gets a call.
  const json forced =
      server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Lily"}}}},
                                           {"max_tokens", 100},
                                           {"temperature", 0},
                                           {"tools", {kTool}},
                                           {"tool_choice", "required"},
                                           {"parallel_tool_calls", false},
                                           {"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(forced["choices"][0]["finish_reason"], "tool_calls");
}

TEST(HttpServer, RefusesToolsThatTheModelIsNotShown) {
  const Server server;
  const json refused =
      server.post("/v1/chat/completions",
                  {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"tools", {kTool}}}, 400);
  EXPECT_EQ(refused["error"]["param"], "tools");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("name the form"),
            std::string::npos);
}

TEST(HttpServer, TellsThoughtsFromAnswers) {
  HttpOptions options;
  options.splits_thoughts = true;
  const Server server(options);
  const auto message = [&](const std::string& prompt, const json& more) {
    return server.post("/v1/chat/completions",
                       with({{"messages", {{{"role", "user"}, {"content", prompt}}}},
                             {"max_tokens", 8},
                             {"temperature", 0}},
                            more))["choices"][0]["message"];
  };
  const json thought = message("Once upon a time <think>", json::object());
  EXPECT_EQ(thought["content"], "");
  EXPECT_FALSE(thought["reasoning_content"].get<std::string>().empty());
  EXPECT_FALSE(message("Once upon a time", json::object()).contains("reasoning_content"));
  const json guided = message("Once <think>", {{"guided_choice", {"yes"}}});
  EXPECT_EQ(guided["content"], "yes");
  EXPECT_FALSE(guided.contains("reasoning_content"));
}

TEST(HttpServer, Completes) {
  const Server server;
  const json answer = server.post("/v1/completions", kGreedy);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "stories");
  const std::string text = answer["choices"][0]["text"];
  EXPECT_TRUE(kStory.starts_with(text) || text.starts_with(kStory)) << text;
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_EQ(server
                .post("/v1/completions",
                      with(kGreedy, {{"prompt", {"Lily", "The dog"}}, {"n", 2}}))["choices"]
                .size(),
            4u);
  const json echoed = server.post(
      "/v1/completions", with(kGreedy, {{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}}));
  EXPECT_EQ(echoed["choices"][0]["text"], "Once upon a time");
  EXPECT_EQ(echoed["choices"][0]["logprobs"]["tokens"].size(), 5u);
  EXPECT_EQ(server.post("/v1/completions",
                        with(kGreedy, {{"max_tokens", 0}, {"echo", true}}))["choices"][0]["text"],
            "Once upon a time");
}

TEST(HttpServer, ChatsThroughTheTemplate) {
  const Server server;
  const json message = {{"role", "user"}, {"content", "Once upon a time"}};
  const json answer = server.post("/v1/chat/completions",
                                  {{"messages", {message}}, {"max_tokens", 6}, {"temperature", 0}});
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  const json unlimited = server.post("/v1/chat/completions",
                                     {{"messages", {message}}, {"temperature", 0}, {"stop", "."}});
  EXPECT_EQ(unlimited["choices"][0]["finish_reason"], "stop");
  const json refused = server.post("/v1/chat/completions",
                                   {{"messages", {{{"role", "system"}, {"content", "x"}}}}}, 400);
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("no system"), std::string::npos);
}

TEST(HttpServer, AnswersBeamsAndGuides) {
  const Server server;
  const json beams =
      server.post("/v1/completions", with(kGreedy, {{"use_beam_search", true}, {"n", 3}}));
  ASSERT_EQ(beams["choices"].size(), 3u);
  EXPECT_NE(beams["choices"][0]["text"], beams["choices"][1]["text"]);
  EXPECT_EQ(beams["usage"]["completion_tokens"], 36);
  const json schema = json::parse(
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}}, "required": ["name", "old"]})");
  const json guided = server.post(
      "/v1/completions",
      with(kGreedy,
           {{"max_tokens", 100},
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}}));
  EXPECT_EQ(guided["choices"][0]["finish_reason"], "stop");
  const json content = json::parse(guided["choices"][0]["text"].get<std::string>());
  EXPECT_TRUE(content["old"].is_boolean()) << content;
  const json refused = server.post(
      "/v1/completions", with(kGreedy, {{"guided_json", {{"not", {{"minLength", 3}}}}}}), 400);
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("\"not\""), std::string::npos);
}

TEST(HttpServer, ListsFilesByPages) {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-http-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    const Server server({}, 1000, 4, folder);
    auto client = server.client();
    std::vector<std::string> ids;
    for (const char* content : {"a", "bb", "ccc"}) {
      const httplib::MultipartFormDataItems form = {{"purpose", "batch", "", ""},
                                                    {"file", content, "in.jsonl", ""}};
      ids.push_back(json::parse(client.Post("/v1/files", form)->body)["id"]);
    }
    const auto list = [&](const std::string& query) {
      const json page = json::parse(client.Get("/v1/files?order=asc" + query)->body);
      std::string out;
      for (const json& file : page["data"])
        out += std::to_string(std::find(ids.begin(), ids.end(), file["id"]) - ids.begin());
      return out + (page["has_more"].get<bool>() ? "+" : "");
    };
    // Within one second files are sorted by name when a server starts, else as they came.
    EXPECT_EQ(list(""), "012");
    EXPECT_EQ(list("&limit=2"), "01+");
    EXPECT_EQ(list("&limit=3"), "012");
    EXPECT_EQ(list("&limit=1&after=" + ids[0]), "1+");
    EXPECT_EQ(list("&limit=1&after=" + ids[1]), "2");
    EXPECT_EQ(list("&after=" + ids[2]), "");
    EXPECT_EQ(list("&purpose=batch_output"), "");
    const json newest = json::parse(client.Get("/v1/files?limit=1")->body);
    EXPECT_EQ(newest["data"][0]["id"], ids[2]);
    for (const char* wrong : {"limit=0", "limit=abc", "limit=10001", "limit=1x", "order=up",
                              "after=file-none", "page=2"}) {
      const auto refused = client.Get(std::string("/v1/files?") + wrong);
      EXPECT_EQ(refused->status, 400) << wrong;
      const std::string param = json::parse(refused->body)["error"]["param"];
      EXPECT_TRUE(std::string_view(wrong).starts_with(param + "=")) << wrong << ": " << param;
    }
    EXPECT_EQ(client.Get("/v1/batches?after=batch_none")->status, 400);
  }
  std::filesystem::remove_all(folder);
}

TEST(HttpServer, KeepsFilesAndRunsBatches) {
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-http-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    const Server server({}, 1000, 4, folder);
    auto client = server.client();
    const std::string lines =
        R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 5}})"
        "\n";
    const httplib::MultipartFormDataItems form = {{"purpose", "batch", "", ""},
                                                  {"file", lines, "in.jsonl", "application/jsonl"}};
    const json file = json::parse(client.Post("/v1/files", form)->body);
    EXPECT_EQ(file["bytes"], lines.size());
    EXPECT_EQ(file["filename"], "in.jsonl");
    const std::string at = "/v1/files/" + file["id"].get<std::string>();
    EXPECT_EQ(client.Get(at + "/content")->body, lines);
    EXPECT_EQ(json::parse(client.Get("/v1/files?purpose=batch")->body)["data"].size(), 1u);
    const json batch = server.post("/v1/batches", {{"input_file_id", file["id"]},
                                                   {"endpoint", "/v1/chat/completions"},
                                                   {"completion_window", "24h"},
                                                   {"metadata", {{"for", "a test"}}}});
    EXPECT_EQ(batch["object"], "batch");
    const std::string path = "/v1/batches/" + batch["id"].get<std::string>();
    json now = json::object();
    for (int i = 0; i < 500 && now.value("status", "") != "completed"; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      now = json::parse(client.Get(path)->body);
    }
    ASSERT_EQ(now["status"], "completed");
    EXPECT_EQ(now["metadata"]["for"], "a test");
    const json record = json::parse(
        client.Get("/v1/files/" + now["output_file_id"].get<std::string>() + "/content")->body);
    EXPECT_EQ(record["response"]["body"]["choices"][0]["message"]["role"], "assistant");
    EXPECT_EQ(json::parse(client.Get("/v1/batches?limit=5")->body)["data"].size(), 1u);
    EXPECT_EQ(client.Get("/v1/batches?limit=x")->status, 400);
    EXPECT_EQ(client.Post(path + "/cancel", "", "application/json")->status, 409);
    EXPECT_EQ(json::parse(client.Delete(at)->body)["deleted"], true);
    EXPECT_EQ(client.Get(at)->status, 404);
    EXPECT_EQ(client.Get("/v1/files/..%2Flock/content")->status, 404);
    EXPECT_EQ(client.Post("/v1/files", "x", "text/plain")->status, 400);
    const httplib::MultipartFormDataItems wrong = {{"purpose", "fine-tune", "", ""},
                                                   {"file", lines, "in.jsonl", ""}};
    EXPECT_EQ(client.Post("/v1/files", wrong)->status, 400);
  }
  std::filesystem::remove_all(folder);
  const Server without;
  EXPECT_EQ(without.client().Get("/v1/files")->status, 404);
}

TEST(HttpServer, StreamsWhatItWouldAnswerWhole) {
  const Server server;
  const std::string whole = server.post("/v1/completions", kGreedy)["choices"][0]["text"];
  auto client = server.client();
  const auto response =
      client.Post("/v1/completions", with(kGreedy, {{"stream", true}}).dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  std::string text, reason;
  int chunks = 0;
  for (size_t at = 0; (at = response->body.find("data: {", at)) != std::string::npos;
       ++at, ++chunks) {
    const json chunk =
        json::parse(response->body.substr(at + 6, response->body.find("\n\n", at) - at - 6));
    text += chunk["choices"][0]["text"].get<std::string>();
    if (!chunk["choices"][0]["finish_reason"].is_null())
      reason = chunk["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(text, whole);
  EXPECT_EQ(reason, "length");
  EXPECT_GT(chunks, 6);
  EXPECT_TRUE(response->body.ends_with("data: [DONE]\n\n"));
}

TEST(HttpServer, SaysWhatIsWrong) {
  HttpOptions options;
  options.most_body_bytes = 2000;
  const Server server(options);
  EXPECT_EQ(
      server.post("/v1/completions", with(kGreedy, {{"model", "other"}}), 404)["error"]["code"],
      "model_not_found");
  EXPECT_EQ(server.post("/v1/completions", with(kGreedy, {{"prompt", std::vector<int>(300, 5)}}),
                        400)["error"]["code"],
            "context_length_exceeded");
  server.post("/v1/completions", with(kGreedy, {{"prompt", {1, 512}}}), 400);
  server.post("/v1/completions", with(kGreedy, {{"prompt", std::string(3000, 'a')}}), 413);
  server.post("/v1/completions", with(kGreedy, {{"repetition_penalty", 1e-38}}), 400);
  server.post("/v1/nothing", {}, 404);
  auto client = server.client();
  EXPECT_EQ(client.Post("/v1/completions", "{", "application/json")->status, 400);
  EXPECT_EQ(client.Get("/v1/completions")->status, 404);
  EXPECT_EQ(client.Get("/health")->status, 200);
}

TEST(HttpServer, TellsAboutItself) {
  const Server server;
  auto client = server.client();
  EXPECT_EQ(json::parse(client.Get("/v1/models")->body)["data"][0]["id"], "stories");
  EXPECT_EQ(json::parse(client.Get("/v1/models")->body)["data"][0]["max_model_len"], 256);
  EXPECT_EQ(json::parse(client.Get("/v1/models/stories")->body)["object"], "model");
  EXPECT_EQ(client.Get("/v1/models/others")->status, 404);
  EXPECT_TRUE(json::parse(client.Get("/version")->body)["version"].is_string());
  server.post("/v1/completions", kGreedy);
  const std::string metrics = client.Get("/metrics")->body;
  EXPECT_NE(metrics.find("vllm:generation_tokens_total{model_name=\"stories\"} 12"),
            std::string::npos);
  for (const char* line :
       {"http_requests_total{method=\"POST\",handler=\"/v1/completions\",status=\"2xx\"} 1\n",
        "http_requests_total{method=\"GET\",handler=\"/v1/models/{}\",status=\"4xx\"} 1\n",
        "sluice:build_info{version=\"", "process_start_time_seconds 1"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  const auto value = [&](const std::string& name) {
    const size_t at = metrics.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(metrics.substr(at + name.size() + 2));
  };
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GE(value("process_open_fds"), 4);
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  EXPECT_GE(value("process_cpu_seconds_total"), 0);
  EXPECT_NEAR(value("process_start_time_seconds"), static_cast<double>(std::time(nullptr)), 3600);
  const json about = json::parse(client.Get("/tokenizer_info")->body);
  EXPECT_EQ(about["vocab_size"], 512);
  EXPECT_EQ(about["eos_token"], "</s>");
  EXPECT_TRUE(about["chat_template"].is_string());
  const json ids = server.post("/tokenize", {{"prompt", "Once upon"}});
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  EXPECT_NE(
      server.post("/detokenize", {{"tokens", ids["tokens"]}})["prompt"].get<std::string>().find(
          "Once upon"),
      std::string::npos);
  EXPECT_EQ(
      server.post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "Lily"}}}}})["count"],
      server.post("/tokenize", {{"prompt", "Lily"}, {"add_special_tokens", false}})["count"]);
  server.post("/tokenize", {{"prompt", 5}}, 400);
  server.post("/detokenize", {{"tokens", {-1}}}, 400);
}

TEST(HttpServer, AsksForItsKeyAndAnswersOtherOrigins) {
  HttpOptions options;
  options.api_keys = {{"secret", 1}};
  options.cors_origins = {"https://a.example"};
  const Server server(options);
  auto client = server.client();
  EXPECT_EQ(client.Get("/v1/models")->status, 401);
  EXPECT_EQ(client.Get("/health")->status, 200);
  for (const char* wrong : {"Bearer secret2", "Bearer secre", "secret", "Bearer "})
    EXPECT_EQ(client.Get("/v1/models", {{"Authorization", wrong}})->status, 401) << wrong;
  for (const char* also : {"bearer secret", "BEARER secret", "Bearer  secret"})
    EXPECT_EQ(client.Get("/v1/models", {{"Authorization", also}})->status, 200) << also;
  const auto right = client.Get(
      "/v1/models", {{"Authorization", "Bearer secret"}, {"Origin", "https://a.example"}});
  EXPECT_EQ(right->status, 200);
  EXPECT_EQ(right->get_header_value("Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(client.Options("/v1/models")->status, 204);
}

TEST(HttpServer, NamesTheFieldThatHasTooMuch) {
  const Server server;
  std::string biases;
  for (int i = 0; i < 70000; ++i) biases += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  const auto refused = [&](const std::string& fields) {
    const auto answer = server.client().Post(
        "/v1/completions", "{\"prompt\": \"a\", " + fields + "}", "application/json");
    EXPECT_EQ(answer->status, 400) << fields.substr(0, 60);
    return json::parse(answer->body)["error"]["param"];
  };
  EXPECT_EQ(refused("\"logit_bias\": {" + biases + "}"), "logit_bias");
  EXPECT_EQ(refused("\"top_k\": 1, \"top_k\": 2"), "top_k");
  EXPECT_EQ(refused("\"logit_bias\": {\"1\": 0, \"1\": 1}"), "logit_bias");
}

TEST(HttpServer, RefusesPromptsByTheirBytes) {
  const Server server;
  const std::string long_text(200000, 'a');
  const json refused = server.post("/v1/completions", with(kGreedy, {{"prompt", long_text}}), 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(refused["error"]["param"], "prompt");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("bytes"), std::string::npos);
  const json chat = server.post("/v1/chat/completions",
                                {{"messages", {{{"role", "user"}, {"content", long_text}}}}}, 400);
  EXPECT_EQ(chat["error"]["param"], "messages");
  // What can't be mended by a flag names none: this model was made for 512 tokens, and serves 256.
  const json tokens =
      server.post("/v1/completions", with(kGreedy, {{"prompt", std::vector<int>(300, 5)}}), 400);
  EXPECT_NE(tokens["error"]["message"].get<std::string>().find("larger context"),
            std::string::npos);
  EXPECT_EQ(
      server.post("/tokenize", {{"prompt", std::string(2 << 20, 'a')}}, 400)["error"]["param"],
      "prompt");
}

TEST(HttpServer, NamesFieldsAndNoPaths) {
  HttpOptions strict = with_tools("hermes");
  strict.is_strict = true;
  const Server server(strict);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {1, 512}}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(
      server.post("/v1/completions", with(kGreedy, {{"guided_regex", "("}}), 400)["error"]["param"],
      "guided_regex");
  // The template concatenates what there is: a message that it can't take is the caller's mistake.
  const json broken =
      server.post("/v1/chat/completions",
                  {{"messages", {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}}}},
                   {"chat_template_kwargs", {{"breaks", true}}}},
                  400);
  EXPECT_EQ(broken["error"]["param"], "messages");
  EXPECT_EQ(broken["error"]["message"].get<std::string>().find('/'), std::string::npos) << broken;
  const json effort = server.post(
      "/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"reasoning_effort", "low"}}, 400);
  EXPECT_EQ(effort["error"]["param"], "reasoning_effort");
  server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Once"}}}},
                                       {"max_tokens", 2},
                                       {"verbosity", "low"}});
}

// What takes longer than it may is told so, with a status where none has gone out.
TEST(HttpServer, TellsOfATimeoutProperly) {
  HttpOptions options;
  options.request_timeout = std::chrono::seconds(1);
  const Server server(options, 1000, 1);
  const json busy = with(kGreedy, {{"max_tokens", 250}, {"ignore_eos", true}, {"n", 120}});
  const json late = server.post("/v1/completions", busy, 504);
  EXPECT_EQ(late["error"]["code"], "timeout");
  auto response = server.client().Post("/v1/completions", with(busy, {{"stream", true}}).dump(),
                                       "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_NE(response->body.find("that this server gives it"), std::string::npos);
  EXPECT_TRUE(response->body.ends_with("data: [DONE]\n\n"));
}

TEST(HttpServer, TakesCompressedBodies) {
  const Server server;
  auto client = server.client();
  client.set_compress(true);
  const auto response = client.Post("/v1/completions", kGreedy.dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200) << response->body;
}

TEST(HttpServer, ACallerThatLeavesTakesItsRequestWithIt) {
  Server server({}, 1000, 1);
  for (const bool streams : {true, false}) {
    httplib::Client client("127.0.0.1", server.port());
    client.set_read_timeout(0, 300000);
    const json body =
        with(kGreedy, {{"max_tokens", 240}, {"stream", streams}, {"ignore_eos", true}, {"n", 20}});
    client.Post("/v1/completions", body.dump(), "application/json");  // gives up after 0.3 s
    client.stop();
    for (int i = 0; i < 3000 && server.service().running() + server.service().waiting() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(server.service().running() + server.service().waiting(), 0);
    const std::string metrics = server.client().Get("/metrics")->body;
    EXPECT_NE(metrics.find("sluice:kv_pages_used{model_name=\"stories\"} 0\n"), std::string::npos);
  }
  EXPECT_EQ(server.post("/v1/completions", kGreedy)["usage"]["completion_tokens"], 12);
}

TEST(HttpServer, AFullQueueIs429WithRetryAfter) {
  const Server server({}, 1, 1);
  std::atomic<int> refused = 0, answered = 0;
  std::vector<std::jthread> callers;
  for (int i = 0; i < 12; ++i)
    callers.emplace_back([&] {
      auto response = server.client().Post(
          "/v1/completions", with(kGreedy, {{"max_tokens", 200}, {"ignore_eos", true}}).dump(),
          "application/json");
      ASSERT_TRUE(response);
      if (response->status == 429) {
        ++refused;
        EXPECT_GE(std::stoi(response->get_header_value("Retry-After")), 1);
      } else {
        EXPECT_EQ(response->status, 200);
        ++answered;
      }
    });
  callers.clear();
  EXPECT_GT(refused, 0);
  EXPECT_GT(answered, 0);
}

// Bytes that are no HTTP, heads without end, lengths that lie: the server lives.
TEST(HttpServer, SurvivesNonsense) {
  const Server server;
  std::mt19937 random(5);
  const std::string seed =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
      "application/json\r\nContent-Length: 40\r\n\r\n"
      "{\"prompt\": \"Lily\", \"max_tokens\": 3}      ";
  for (int round = 0; round < 200; ++round) {
    std::string bytes = seed;
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const size_t at = random() % bytes.size();
      if (random() % 2 == 0)
        bytes[at] = static_cast<char>(random());
      else
        bytes.erase(at, random() % 20);
      if (bytes.empty()) bytes = "G";
    }
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    close(fd);
    // No more at once than the server takes, however slow it is here.
    if (round % 16 == 15) {
      const auto health = server.client().Get("/health");
      ASSERT_TRUE(health) << round;
      EXPECT_EQ(health->status, 200) << round;
    }
  }
  EXPECT_EQ(server.post("/v1/completions", kGreedy)["usage"]["completion_tokens"], 12);
}

}  // namespace
}  // namespace sluice::serve
