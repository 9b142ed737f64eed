// Which pages are answered where no key is asked for, and what browsers are told.
#include "src/serve/origins.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace sluice::serve {
namespace {

http::Request head(std::string host, http::Fields more = {}, std::string method = "POST") {
  http::Request out;
  out.method = std::move(method);
  out.path = "/v1/completions";
  out.headers = std::move(more);
  out.headers.emplace_back("Host", std::move(host));
  return out;
}

std::string header(const http::Fields& fields, std::string_view name) {
  for (const auto& [field, value] : fields)
    if (field == name) return value;
  return {};
}

TEST(Origins, TheServersOwnNames) {
  for (const char* own : {"localhost", "localhost:8000", "LOCALHOST:1", "a.localhost:3",
                          "127.0.0.1:8000", "192.168.1.20", "[::1]:8000", "[fe80::1%25eth0]:8000",
                          "sluice:8000", "localhost.:8000", ""})
    EXPECT_TRUE(is_own_host(own, {})) << own;
  for (const char* foreign : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                              "localhost.evil.example", "1.2.3.4.5", "127.0.0.1x.a", "a.b."})
    EXPECT_FALSE(is_own_host(foreign, {})) << foreign;
  EXPECT_TRUE(is_own_host("llm.example.com:443", {"a.example", "LLM.example.com"}));
  EXPECT_TRUE(is_own_host("anything.example", {"*"}));
}

TEST(Origins, PagesOfOthersAreForeign) {
  const std::string host = "127.0.0.1:8000";
  const auto foreign = [&](const http::Fields& more, const std::vector<std::string>& origins = {},
                           const char* method = "POST") {
    return is_foreign(head(host, more, method), origins);
  };
  EXPECT_FALSE(foreign({})) << "no browser";
  EXPECT_FALSE(foreign({{"Origin", "http://127.0.0.1:8000"}}));
  EXPECT_TRUE(foreign({{"Origin", "http://127.0.0.1:8001"}}));
  EXPECT_TRUE(foreign({{"Origin", "http://localhost:8000"}})) << "another name is another origin";
  EXPECT_TRUE(foreign({{"Origin", "https://evil.example"}}));
  EXPECT_TRUE(foreign({{"Origin", "null"}}));
  EXPECT_TRUE(foreign({{"Sec-Fetch-Site", "cross-site"}}, {}, "GET")) << "an image, say";
  EXPECT_TRUE(foreign({{"Sec-Fetch-Site", "same-site"}}));
  EXPECT_FALSE(foreign({{"Sec-Fetch-Site", "same-origin"}, {"Origin", "https://proxy.example"}}))
      << "the page itself behind a proxy";
  EXPECT_FALSE(foreign({{"Sec-Fetch-Site", "none"}}, {}, "GET"));
  // A link to the page may be followed; a form may not be posted.
  const http::Fields link{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}};
  EXPECT_FALSE(foreign(link, {}, "GET"));
  EXPECT_TRUE(foreign(link));
  EXPECT_FALSE(foreign({{"Origin", "vscode-webview://abc"}})) << "a program's own window";
  const std::vector<std::string> allowed{"https://a.example", "http://localhost:3000"};
  EXPECT_FALSE(
      foreign({{"Origin", "https://a.example"}, {"Sec-Fetch-Site", "cross-site"}}, allowed));
  EXPECT_FALSE(foreign({{"Origin", "http://localhost:3000"}}, allowed));
  EXPECT_TRUE(foreign({{"Origin", "https://a.example.evil.example"}}, allowed));
  EXPECT_TRUE(foreign({{"Origin", "http://a.example"}}, allowed));
  EXPECT_FALSE(foreign({{"Origin", "null"}}, {"*"}));
  // The port that a scheme has anyway.
  EXPECT_FALSE(is_foreign(head("box", {{"Origin", "http://box"}}), {}));
  EXPECT_FALSE(is_foreign(head("box:80", {{"Origin", "http://box"}}), {}));
  EXPECT_TRUE(is_foreign(head("box:81", {{"Origin", "http://box"}}), {}));
}

TEST(Origins, RefusalsSayWhatToSet) {
  const auto rebound = refusal(head("evil.example:8000"), {});
  ASSERT_TRUE(rebound);
  EXPECT_NE(rebound->find("`allowed_hosts` evil.example"), std::string::npos) << *rebound;
  const auto foreign = refusal(head("localhost", {{"Origin", "https://evil.example"}}), {});
  ASSERT_TRUE(foreign);
  EXPECT_NE(foreign->find("`cors_origins` https://evil.example"), std::string::npos) << *foreign;
  EXPECT_FALSE(refusal(head("evil.example", {{"Origin", "https://evil.example"}}), {{"*"}, {"*"}}));
}

TEST(Origins, BrowsersAreToldWhatTheyAskFor) {
  http::Request ask = head("localhost", {{"Origin", "https://a.example"}}, "OPTIONS");
  ask.headers.emplace_back("Access-Control-Request-Method", "POST");
  ask.headers.emplace_back("Access-Control-Request-Headers",
                           "authorization,content-type,x-stainless-os,x-stainless-retry-count");
  ask.headers.emplace_back("Access-Control-Request-Private-Network", "true");
  EXPECT_TRUE(is_preflight(ask));
  const http::Fields told = cors_headers(ask, {"https://a.example", "https://b.example"});
  EXPECT_EQ(header(told, "Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(header(told, "Access-Control-Allow-Headers"),
            "authorization,content-type,x-stainless-os,x-stainless-retry-count");
  EXPECT_EQ(header(told, "Access-Control-Allow-Private-Network"), "true");
  EXPECT_EQ(header(told, "Vary"), "Origin");
  EXPECT_EQ(header(cors_headers(ask, {"*"}), "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header(cors_headers(ask, {"*"}), "Vary"), "");
  const http::Fields other = cors_headers(ask, {"https://b.example"});
  EXPECT_EQ(header(other, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(header(other, "Vary"), "Origin") << "a cache must not give it to another page";
  EXPECT_TRUE(cors_headers(ask, {}).empty());
  ask.headers[3].second = "x: y\"";
  EXPECT_EQ(header(cors_headers(ask, {"*"}), "Access-Control-Allow-Headers"), "");
}

TEST(Origins, OriginsAreChecked) {
  for (const char* right : {"*", "https://a.example", "http://localhost:3000", "null"}) {
    if (std::string(right) == "null")
      EXPECT_THROW(check_origin(right), Error);
    else
      EXPECT_NO_THROW(check_origin(right)) << right;
  }
  for (const char* wrong : {"", "a.example", "https://", "https://a.example/",
                            "https://a.example/x", "https://A.example", "https://a b"})
    EXPECT_THROW(check_origin(wrong), Error) << wrong;
}

}  // namespace
}  // namespace sluice::serve
