// Ollama's routes over a real connection.
#include <gtest/gtest.h>
#include <httplib.h>

#include <thread>

#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

const json kGreedyOptions = {{"num_predict", 12}, {"temperature", 0}};

json chat_with(const json& more) {
  json body = {{"model", "stories"},
               {"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
               {"options", kGreedyOptions}};
  body.update(more);
  return body;
}

TEST(HttpOllama, PullsWhatIsThereAndChangesNothing) {
  const RunningServer server;
  EXPECT_EQ(server.post("/api/pull", {{"model", "stories"}})["status"], "success");
  EXPECT_EQ(server.post("/api/pull", {{"name", "stories:latest"}, {"stream", false}})["status"],
            "success");
  EXPECT_TRUE(server.post("/api/pull", {{"model", "llama3"}}, 404)["error"].is_string());
  for (const char* path : {"/api/push", "/api/create", "/api/copy"})
    EXPECT_TRUE(server.post(path, {{"model", "stories"}}, 400)["error"].is_string()) << path;
  EXPECT_EQ(
      server.client().Delete("/api/delete", R"({"model": "stories"})", "application/json")->status,
      400);
}

TEST(HttpOllama, AnswersWhatAChatAnswers) {
  const RunningServer server;
  const json chat = server.post(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                               {"max_tokens", 12},
                               {"temperature", 0}});
  const json answer =
      server.post("/api/chat", chat_with({{"stream", false}, {"model", "stories:latest"}}));
  const std::string text = answer["message"]["content"];
  EXPECT_EQ(text, chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(answer["model"], "stories");
  EXPECT_EQ(answer["done_reason"], "length");
  EXPECT_EQ(answer["prompt_eval_count"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["eval_count"], 12);
  EXPECT_GE(answer["total_duration"].get<int64_t>(), answer["eval_duration"].get<int64_t>());
  const json generated =
      server.post("/api/generate",
                  {{"prompt", "Once upon a time"}, {"stream", false}, {"options", kGreedyOptions}});
  EXPECT_EQ(generated["response"], text);

  const auto response =
      server.client().Post("/api/chat", chat_with(json::object()).dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->get_header_value("Content-Type"), "application/x-ndjson");
  std::string told;
  std::istringstream lines(response->body);
  json last;
  for (std::string line; std::getline(lines, line);) {
    last = json::parse(line);
    told += last["message"]["content"].get<std::string>();
  }
  EXPECT_EQ(told, text);
  EXPECT_EQ(last["done"], true);
  EXPECT_EQ(last["eval_count"], 12);
}

// The same tokens and numbers as OpenAI's interface tells, in each form and in streams.
TEST(HttpOllama, TellsLogProbabilities) {
  const RunningServer server;
  const json chat = server.post(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Once upon a time"}}}},
                               {"max_tokens", 12},
                               {"temperature", 0},
                               {"logprobs", true},
                               {"top_logprobs", 2}});
  const json expected = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(expected.size(), 12u);
  const json wish = {{"logprobs", true}, {"top_logprobs", 2}, {"stream", false}};
  EXPECT_EQ(server.post("/api/chat", chat_with(wish))["logprobs"], expected);
  for (const bool raw : {false, true}) {
    json body = {{"prompt", "Once upon a time"}, {"options", kGreedyOptions}, {"raw", raw}};
    body.update(wish);
    const json told = server.post("/api/generate", body)["logprobs"];
    ASSERT_EQ(told.size(), 12u);
    for (const json& one : told) EXPECT_EQ(one["top_logprobs"].size(), 2u);
    if (!raw) EXPECT_EQ(told, expected);
  }
  json streamed = json::array();
  const auto response = server.client().Post(
      "/api/chat", chat_with({{"logprobs", true}, {"top_logprobs", 2}}).dump(), "application/json");
  ASSERT_TRUE(response);
  std::istringstream lines(response->body);
  for (std::string line; std::getline(lines, line);)
    for (const json& one : json::parse(line).value("logprobs", json::array()))
      streamed.push_back(one);
  EXPECT_EQ(streamed, expected);
  const json plain = server.post("/api/chat", chat_with({{"top_logprobs", 2}, {"stream", false}}));
  EXPECT_FALSE(plain.contains("logprobs"));
  const json alone = server.post("/api/chat", chat_with({{"logprobs", true}, {"stream", false}}));
  EXPECT_FALSE(alone["logprobs"][0].contains("top_logprobs"));
}

TEST(HttpOllama, SendsRawPromptsAsTheyAre) {
  const RunningServer server;
  const json plain = server.post(
      "/v1/completions", {{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}});
  const json raw = server.post("/api/generate", {{"prompt", "Once upon a time"},
                                                 {"raw", true},
                                                 {"stream", false},
                                                 {"options", kGreedyOptions}});
  EXPECT_EQ(raw["response"], plain["choices"][0]["text"]);
  EXPECT_EQ(raw["prompt_eval_count"], plain["usage"]["prompt_tokens"]);
  // Without a bound: until it ends, or the context is full.
  const json all = server.post("/api/generate", {{"prompt", "Once upon a time"},
                                                 {"raw", true},
                                                 {"stream", false},
                                                 {"options", {{"temperature", 0}}}});
  EXPECT_GT(all["eval_count"].get<int>(), 100);
  EXPECT_LE(all["eval_count"].get<int>() + all["prompt_eval_count"].get<int>(), 256);
  const json choice = server.post("/api/generate", {{"prompt", "Once"},
                                                    {"stream", false},
                                                    {"format", {{"type", "boolean"}}},
                                                    {"options", kGreedyOptions}});
  EXPECT_TRUE(choice["response"] == "true" || choice["response"] == "false") << choice;
}

TEST(HttpOllama, CallsTools) {
  HttpOptions options;
  options.tool_format = chat::find_tool_format("llama3_json");
  const RunningServer server(options);
  const json tools = json::parse(R"([{"type": "function", "function": {"name": "clock"}}])");
  const json answer = server.post("/api/chat", chat_with({{"stream", false}, {"tools", tools}}));
  EXPECT_EQ(answer["done"], true);
  EXPECT_EQ(server.post("/api/show", {{"model", "stories"}})["capabilities"],
            (json{"completion", "tools"}));
  const json refused =
      RunningServer().post("/api/chat", chat_with({{"stream", false}, {"tools", tools}}), 400);
  EXPECT_NE(refused["error"].get<std::string>().find("tools"), std::string::npos);
}

TEST(HttpOllama, TellsOfItsModel) {
  const RunningServer server;
  const auto get = [&](const char* path) { return json::parse(server.client().Get(path)->body); };
  const json tags = get("/api/tags");
  ASSERT_EQ(tags["models"].size(), 1u);
  EXPECT_EQ(tags["models"][0]["name"], "stories:latest");
  EXPECT_EQ(tags["models"][0]["digest"].get<std::string>().size(), 64u);
  EXPECT_GT(tags["models"][0]["size"].get<int64_t>(), 1000);
  EXPECT_EQ(tags["models"][0]["details"]["family"], "llama");
  EXPECT_EQ(get("/api/ps")["models"][0]["context_length"], 256);
  EXPECT_EQ(get("/api/version")["version"], get("/version")["version"]);
  const json shown = server.post("/api/show", {{"model", "stories:latest"}});
  EXPECT_EQ(shown["model_info"]["llama.context_length"], 256);
  EXPECT_EQ(shown["model_info"]["general.architecture"], "llama");
  EXPECT_NE(shown["template"].get<std::string>().find("messages"), std::string::npos);
  // Asked for nothing, it says that the model is there.
  EXPECT_EQ(server.post("/api/generate", {{"model", "stories"}})["done_reason"], "load");
  EXPECT_EQ(server.post("/api/chat", {{"model", "stories"}})["message"]["content"], "");
}

TEST(HttpOllama, SaysWhatIsWrongInItsOwnShape) {
  HttpOptions options;
  options.api_keys = {{"secret", 1}};
  const RunningServer locked(options);
  EXPECT_TRUE(locked.post("/api/chat", chat_with(json::object()), 401)["error"].is_string());
  HttpOptions strict;
  strict.is_strict = true;
  const RunningServer server(strict);
  const std::tuple<const char*, json, int, const char*> cases[] = {
      {"/api/chat", chat_with({{"model", "nope"}}), 404, "nope"},
      {"/api/show", {{"model", "nope"}}, 404, "nope"},
      {"/api/show", json::object(), 400, "model"},
      {"/api/show", {{"model", "stories"}, {"wat", 1}}, 400, "wat"},
      {"/api/generate", {{"model", "nope"}}, 404, "nope"},
      {"/api/generate", {{"prompt", std::string(30000, 'a')}}, 400, "context"},
      {"/api/chat", chat_with({{"wat", 1}}), 400, "wat"},
      {"/api/chat", chat_with({{"options", {{"wat", 1}}}}), 400, "options.wat"},
      {"/api/chat", chat_with({{"format", 5}}), 400, "format"}};
  for (const auto& [path, body, status, word] : cases) {
    const json refused = server.post(path, body, status);
    ASSERT_TRUE(refused["error"].is_string()) << refused;
    EXPECT_NE(refused["error"].get<std::string>().find(word), std::string::npos) << refused;
  }
  for (const char* body : {"", "{", "[1]", "null"})
    EXPECT_EQ(server.client().Post("/api/chat", body, "application/json")->status, 400) << body;
}

TEST(HttpOllama, ACallerThatLeavesTakesItsRequestWithIt) {
  RunningServer server({}, 1000, 1);
  const json body = chat_with({{"options", {{"num_predict", 240}, {"temperature", 1.5}}}});
  std::vector<std::jthread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      httplib::Request request;
      request.method = "POST";
      request.path = "/api/chat";
      request.body = body.dump();
      size_t heard = 0;
      request.content_receiver = [&](const char*, size_t length, uint64_t, uint64_t) {
        return (heard += length) < 600;
      };
      server.client().send(request);
    });
  callers.clear();
  for (int i = 0; i < 3000 && server.service().running() + server.service().waiting() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server.service().running() + server.service().waiting(), 0);
  EXPECT_EQ(server.post("/api/chat", chat_with({{"stream", false}}))["eval_count"], 12);
}

}  // namespace
}  // namespace sluice::serve
