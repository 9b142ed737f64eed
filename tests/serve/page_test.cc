// The page for browsers: what is in it, how it is answered, and that the figures it and the
// dashboard ask for are those that /metrics has. scripts/check_page.py drives it in a browser.
#include "src/serve/page.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "src/serve/metrics.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

size_t times_in(std::string_view text, std::string_view word) {
  size_t times = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++times;
  return times;
}

TEST(Page, HoldsAllThatItNeeds) {
  const std::string html(kPageText.html);
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_TRUE(html.ends_with("</html>\n"));
  EXPECT_EQ(times_in(html, "<script"), 1u);
  EXPECT_EQ(times_in(html, "<style"), 1u);
  // The one address is the name of SVG's words, in the icon.
  EXPECT_EQ(times_in(html, "://"), 1u);
  EXPECT_EQ(times_in(html, "http://www.w3.org/2000/svg"), 1u);
  EXPECT_EQ(times_in(html, "@import"), 0u);
  EXPECT_EQ(times_in(html, "/*style*/") + times_in(html, "/*script*/"), 0u);
  // What the policy would not run, and what a text could become markup by.
  for (const char* word : {" style=", " onclick=", " onload=", "javascript:", "innerHTML",
                           "outerHTML", "insertAdjacentHTML", "document.write", "eval("})
    EXPECT_EQ(times_in(html, word), 0u) << word;
}

TEST(Page, EveryElementThatTheScriptNamesIsThere) {
  const std::string html(kPageText.html);
  const std::regex named("byId\\(\"([^\"]+)\"\\)");
  std::set<std::string> ids;
  for (std::sregex_iterator at(html.begin(), html.end(), named), end; at != end; ++at)
    ids.insert((*at)[1]);
  EXPECT_GT(ids.size(), 20u);
  for (const std::string& id : ids) EXPECT_EQ(times_in(html, " id=\"" + id + "\""), 1u) << id;
}

TEST(Page, ItsPolicyAllowsItselfAlone) {
  const std::string policy = page_policy(kPageText);
  EXPECT_TRUE(policy.starts_with("default-src 'none'; "));
  EXPECT_NE(policy.find("connect-src 'self';"), std::string::npos);
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_NE(policy.find("require-trusted-types-for 'script'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(policy.find("http"), std::string::npos);
  const std::regex digest("'sha256-[A-Za-z0-9+/]{43}='");
  for (const std::string_view one : {kPageText.script_digest, kPageText.style_digest})
    EXPECT_TRUE(std::regex_match(std::string(one), digest)) << one;
  EXPECT_NE(kPageText.script_digest, kPageText.style_digest);
}

TEST(Page, IsAnsweredAtTheRootAlone) {
  const RunningServer server;
  auto client = server.client();
  const auto got = client.Get("/");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->body, kPageText.html);
  EXPECT_EQ(got->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(got->get_header_value("Content-Security-Policy"), page_policy(kPageText));
  EXPECT_EQ(got->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(got->get_header_value("Referrer-Policy"), "no-referrer");
  EXPECT_EQ(got->get_header_value("ETag"), kPageText.etag);
  EXPECT_EQ(client.Get("/?model=x")->body, kPageText.html);
  const auto head = client.Head("/");
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->body, "");
  EXPECT_EQ(head->get_header_value("Content-Length"), std::to_string(kPageText.html.size()));
  EXPECT_EQ(head->get_header_value("ETag"), kPageText.etag);
  for (const char* other : {"//", "/index.html", "/page.js", "/favicon.ico", "/src/serve/page"})
    EXPECT_EQ(client.Get(other)->status, 404) << other;
  EXPECT_EQ(client.Post("/", "{}", "application/json")->status, 404);
  EXPECT_EQ(client.Delete("/")->status, 404);
  EXPECT_EQ(client.Get("/health")->get_header_value("Content-Security-Policy"), "");
}

TEST(Page, IsNotSentAgainWhereItIsKept) {
  const RunningServer server;
  auto client = server.client();
  const std::string tag(kPageText.etag);
  for (const std::string& kept : {tag, "W/" + tag, "\"other\",  " + tag, tag + " , \"x\"",
                                  std::string("*"), std::string("\t*")}) {
    const auto answer = client.Get("/", {{"If-None-Match", kept}});
    ASSERT_TRUE(answer) << kept;
    EXPECT_EQ(answer->status, 304) << kept;
    EXPECT_EQ(answer->body, "");
    EXPECT_EQ(answer->get_header_value("ETag"), tag);
    EXPECT_FALSE(answer->has_header("Content-Length"));
  }
  for (const std::string& other : {std::string("\"\""), std::string(","), tag.substr(1), tag + "x",
                                   "w/" + tag, std::string("W/"), std::string(" ")})
    EXPECT_EQ(client.Get("/", {{"If-None-Match", other}})->status, 200) << other;
}

// The page asks for the key; what it shows afterwards needs it.
TEST(Page, ComesWithoutTheKey) {
  HttpOptions options;
  options.api_keys = {{"secret", 1}};
  const RunningServer server(options);
  auto client = server.client();
  EXPECT_EQ(client.Get("/")->status, 200);
  EXPECT_EQ(client.Head("/")->status, 200);
  EXPECT_EQ(client.Get("/")->body.find("secret"), std::string::npos);
  for (const char* path : {"/metrics", "/v1/models", "//", "/index.html"})
    EXPECT_EQ(client.Get(path)->status, 401) << path;
  EXPECT_EQ(client.Post("/", "{}", "application/json")->status, 401);
}

TEST(Page, CanBeLeftOut) {
  HttpOptions options;
  options.has_page = false;
  EXPECT_EQ(RunningServer(options).client().Get("/")->status, 404);
  options.api_keys = {{"secret", 1}};
  EXPECT_EQ(RunningServer(options).client().Get("/")->status, 401);
}

// Who asks and asks again, but takes hardly a byte of the answers.
class SlowCaller {
 public:
  SlowCaller(int port, int times) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int few = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    const timeval most{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    std::string all;
    for (int i = 0; i < times; ++i)
      all += i + 1 < times ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                           : "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(fd_, all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
  }
  ~SlowCaller() { ::close(fd_); }
  SlowCaller(const SlowCaller&) = delete;
  SlowCaller& operator=(const SlowCaller&) = delete;

  std::string hear_all() {
    std::string out;
    char bytes[4096];
    for (ssize_t some; (some = ::recv(fd_, bytes, sizeof bytes, 0)) > 0;)
      out.append(bytes, static_cast<size_t>(some));
    return out;
  }

 private:
  int fd_;
};

TEST(Page, WhoTakesItSlowlyDelaysNobody) {
  constexpr int kTimes = 20;
  const RunningServer server;
  std::vector<std::unique_ptr<SlowCaller>> slow;
  for (int i = 0; i < 50; ++i) slow.push_back(std::make_unique<SlowCaller>(server.port(), kTimes));
  auto client = server.client();
  // Answers are not compressed, whoever asks for it.
  const auto got = client.Get("/", {{"Accept-Encoding", "gzip, br"}});
  ASSERT_TRUE(got);
  EXPECT_EQ(got->body, kPageText.html);
  EXPECT_FALSE(got->has_header("Content-Encoding"));
  EXPECT_EQ(client.Get("/health")->status, 200);
  const std::string heard = slow.front()->hear_all();
  EXPECT_EQ(times_in(heard, "HTTP/1.1 200 OK\r\n"), size_t{kTimes});
  EXPECT_EQ(times_in(heard, "</html>\n"), size_t{kTimes});
  EXPECT_TRUE(heard.ends_with(kPageText.html));
}

// Names of series in /metrics, also those of a histogram.
std::set<std::string> series() {
  std::set<std::string> out;
  std::istringstream lines(Metrics("m").text(0, 0));
  for (std::string hash, type, name, kind; std::getline(lines, hash, ' ');) {
    std::string rest;
    std::getline(lines, rest);
    std::istringstream words(rest);
    words >> type >> name >> kind;
    if (hash != "#" || type != "TYPE") continue;
    out.insert(name);
    for (const char* part : {"_bucket", "_sum", "_count"})
      if (kind == "histogram" || (kind == "summary" && part[1] != 'b')) out.insert(name + part);
  }
  return out;
}

std::set<std::string> names_in(const std::string& text) {
  const std::regex named("(vllm|sluice):[a-z0-9_]+");
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), named), end; at != end; ++at)
    out.insert(at->str());
  return out;
}

TEST(Page, AsksForFiguresThatThereAre) {
  const auto there = series();
  EXPECT_GT(there.size(), 50u);
  const auto asked = names_in(std::string(kPageText.html));
  EXPECT_GT(asked.size(), 10u);
  for (const std::string& name : asked) EXPECT_TRUE(there.contains(name)) << name;
}

TEST(Page, TheDashboardAsksForFiguresThatThereAre) {
  const auto root = std::filesystem::path(SLUICE_FIXTURES).parent_path().parent_path();
  std::ifstream file(root / "docs/monitoring/grafana-dashboard.json");
  const auto dashboard = nlohmann::json::parse(file);
  const auto there = series();
  size_t asked = 0;
  for (const auto& panel : dashboard["panels"]) {
    EXPECT_FALSE(panel["title"].get<std::string>().empty());
    if (panel["type"] == "row") continue;
    EXPECT_FALSE(panel["targets"].empty()) << panel["title"];
    for (const auto& target : panel["targets"]) {
      const auto names = names_in(target["expr"]);
      EXPECT_FALSE(names.empty()) << target["expr"];
      for (const std::string& name : names) EXPECT_TRUE(there.contains(name)) << name;
      asked += names.size();
    }
  }
  EXPECT_GT(asked, 20u);
}

}  // namespace
}  // namespace sluice::serve
