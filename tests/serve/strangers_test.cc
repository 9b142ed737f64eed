// A server between strangers: pages of other origins, a server that is not ready yet or ends.
#include <gtest/gtest.h>
#include <httplib.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/base/error.h"
#include "src/serve/http_server.h"
#include "src/serve/waiting_room.h"
#include "tests/serve/running_server.h"
#include "tests/temporary_folder.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

// What a page on the web could do to a server on loopback that asks for no key.
TEST(ServerForStrangers, WithoutAKeyOtherPagesAreRefused) {
  const TemporaryFolder folder;
  const RunningServer server({}, 1000, 4, folder.path());
  auto client = server.client();
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  const auto post = [&](const httplib::Headers& headers, const std::string& path,
                        const std::string& content,
                        const char* type) { return client.Post(path, headers, content, type); };
  const httplib::Headers evil{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}};
  const auto refused = post(evil, "/v1/completions", body, "text/plain;charset=UTF-8");
  EXPECT_EQ(refused->status, 403);
  EXPECT_NE(refused->body.find("cors_origins"), std::string::npos) << refused->body;
  EXPECT_EQ(post(evil, "/v1/files", std::string(1 << 20, 'x'), "multipart/form-data")->status, 403);
  EXPECT_EQ(post(evil, "/v1/batches", "{}", "text/plain")->status, 403);
  EXPECT_EQ(post({{"Origin", "null"}}, "/v1/completions", body, "text/plain")->status, 403);
  for (const char* path : {"/", "/health", "/v1/models", "/v1/files", "/metrics"})
    EXPECT_EQ(client.Get(path, {{"Host", "evil.example:8000"}})->status, 403) << path;
  const std::string own = "http://127.0.0.1:" + std::to_string(server.port());
  EXPECT_EQ(post({{"Origin", own}}, "/v1/completions", body, "application/json")->status, 200);
  EXPECT_EQ(post({}, "/v1/completions", body, "application/json")->status, 200);
  EXPECT_EQ(
      client.Get("/", {{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}})->status,
      200);
}

TEST(ServerForStrangers, PagesOfAllowedOriginsAskFirst) {
  HttpOptions options;
  options.cors_origins = {"https://a.example"};
  options.allowed_hosts = {"llm.example"};
  const RunningServer server(options);
  auto client = server.client();
  const httplib::Headers ask{{"Origin", "https://a.example"},
                             {"Access-Control-Request-Method", "POST"},
                             {"Access-Control-Request-Headers", "x-stainless-lang,content-type"}};
  const auto told = client.Options("/v1/chat/completions", ask);
  EXPECT_EQ(told->status, 204);
  EXPECT_EQ(told->get_header_value("Access-Control-Allow-Headers"),
            "x-stainless-lang,content-type");
  const auto read = client.Get("/v1/models", {{"Origin", "https://a.example"}});
  EXPECT_EQ(read->get_header_value("Access-Control-Allow-Origin"), "https://a.example");
  const auto other = client.Get("/v1/models", {{"Origin", "https://b.example"}});
  EXPECT_EQ(other->status, 403);
  EXPECT_EQ(other->get_header_value("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(client.Get("/v1/models", {{"Host", "llm.example"}})->status, 200);
}

TEST(ServerForStrangers, SaysThatItDrains) {
  RunningServer server;
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  server.http().drain();
  const auto health = server.client().Get("/health");
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(json::parse(health->body)["status"], "draining");
  EXPECT_FALSE(json::parse(health->body)["reason"].empty());
}

// One address, first answered while the model is loaded and then by the server, on connections that
// came at any time.
TEST(WaitingRoom, TellsHowFarItIsAndMakesWay) {
  const http::Listener address = http::Listener::open("127.0.0.1", 0);
  EXPECT_THROW(http::Listener::open("127.0.0.1", address.port()), Error) << "the port is taken";
  WaitingRoom waiting(address, {});
  httplib::Client client("127.0.0.1", address.port());
  waiting.tell(1 << 20, 4 << 20);
  const auto health = client.Get("/health");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(json::parse(health->body)["status"], "loading");
  EXPECT_EQ(json::parse(health->body)["progress"], 0.25);
  const auto early = client.Post("/v1/completions", R"({"prompt": "a"})", "application/json");
  EXPECT_EQ(early->status, 503);
  EXPECT_EQ(json::parse(early->body)["error"]["code"], "model_loading");
  EXPECT_NE(early->get_header_value("Retry-After"), "");
  waiting.close();
  // Nobody answers now; who connects waits.
  auto patient = std::async(std::launch::async, [&] {
    httplib::Client late("127.0.0.1", address.port());
    late.set_read_timeout(60);
    return late.Get("/health");
  });
  ServedModel model;
  HttpServer server(model.service(), model.tokenizer(), nullptr, {});
  server.listen(address);
  const std::jthread serving([&] { server.serve(); });
  const auto answered = patient.get();
  ASSERT_TRUE(answered);
  EXPECT_EQ(answered->status, 200);
  server.stop();
}

}  // namespace
}  // namespace sluice::serve
