// sluice serve and bench serve as a user runs them: start, load, an interrupt in the middle.
#include <gtest/gtest.h>
#include <httplib.h>

#include <csignal>
#include <sstream>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

// A server on a port of its own choosing, which its first lines name.
class Served {
 public:
  explicit Served(const Words& more = {}) : errors_(folder_.path("stderr")) {
    write_file(errors_, "");
    Words words{"-c",           "exec \"$0\" \"$@\" 2>" + errors_,
                SLUICE_PROGRAM, "serve",
                "-m",           fixture_model("stories260k"),
                "--port",       "0",
                "-t",           "1",
                "-c",           "256"};
    words.insert(words.end(), more.begin(), more.end());
    Command::Options options;
    options.program = "/bin/sh";
    command_ = std::make_unique<Command>(words, options);
    command_->wait_until([&] { return said("http://127.0.0.1:"); });
    const std::string text = read_file(errors_);
    const size_t at = text.find("http://127.0.0.1:");
    if (at == std::string::npos) throw std::runtime_error("the server did not start: " + text);
    url_ = text.substr(at, text.find('/', at + 7) - at);
  }

  bool said(const std::string& words) const {
    return read_file(errors_).find(words) != std::string::npos;
  }
  const std::string& url() const { return url_; }
  Command& command() { return *command_; }

 private:
  TemporaryFolder folder_;
  std::string errors_;
  std::unique_ptr<Command> command_;
  std::string url_;
};

TEST(Serve, AnswersLoadAndStopsWhenAsked) {
  Served served;
  const auto report =
      succeed({"bench", "serve", "--url", served.url(), "--users", "1,6", "--requests", "12",
               "--pp", "20", "--tg", "10", "--vocab", "500", "--lengths", "exponential", "--json"})
          .json();
  ASSERT_EQ(report["results"].size(), 2u);
  for (const auto& row : report["results"]) {
    EXPECT_EQ(row["answered"], 12);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_GT(row["output_tokens_per_s"], 0);
    EXPECT_LE(row["ttft_ms"]["p50"], row["ttft_ms"]["p99"]);
    EXPECT_GE(row["e2e_ms"]["p50"], row["ttft_ms"]["p50"]);
  }
  served.command().send(SIGTERM);
  EXPECT_EQ(served.command().wait().exit_code, 0);
  EXPECT_TRUE(served.said("  total "));
}

TEST(Serve, HasAPageUnlessItIsLeftOut) {
  const Served served;
  EXPECT_TRUE(httplib::Client(served.url()).Get("/")->body.starts_with("<!doctype html>"));
  EXPECT_TRUE(served.said("in a browser, chat and what the server does just now: " + served.url()));
  const Served bare({"--no-webui"});
  EXPECT_EQ(httplib::Client(bare.url()).Get("/")->status, 404);
  EXPECT_EQ(httplib::Client(bare.url()).Get("/health")->status, 200);
  EXPECT_FALSE(bare.said("in a browser"));
}

// Whether the server computes something just now.
bool is_busy(const Served& served) {
  const auto answer = httplib::Client(served.url()).Get("/metrics");
  if (!answer) return false;
  std::istringstream lines(answer->body);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("vllm:num_requests_running{")) return !line.ends_with(" 0");
  throw std::runtime_error("no vllm:num_requests_running in /metrics");
}

TEST(Serve, FinishesWhatRunsWhenInterrupted) {
  Served served({"--max-num-seqs", "2"});
  Command load({"bench", "serve", "--url", served.url(), "--users", "8", "--requests", "64", "--pp",
                "8", "--tg", "240", "--vocab", "500", "--json"});
  ASSERT_TRUE(served.command().wait_until([&] { return is_busy(served); }));
  served.command().send(SIGINT);
  EXPECT_EQ(served.command().wait().exit_code, 0);
  const Outcome outcome = load.wait();
  const auto row = outcome.json()["results"][0];
  // Those taken before the interrupt are answered; those that came after it are refused.
  EXPECT_GT(row["answered"], 0);
  EXPECT_EQ(row["answered"].get<int>() + row["failed"].get<int>(), 64);
}

TEST(Serve, SaysWhatIsWrongBeforeItListens) {
  fail({"serve", "-m", fixture_model("llama-tiny-gqa"), "--port", "0"}, 3, {"tokenizer"});
  fail({"serve", "-m", fixture_model("stories260k"), "--port", "0", "--chat-template",
        "/nowhere.jinja"},
       3, {"/nowhere.jinja"});
  fail({"serve", "-m", fixture_model("stories260k"), "--host", "203.0.113.7"}, 2,
       {"can't listen on 203.0.113.7"});
  const std::string model = fixture_model("stories260k");
  fail({"serve", model, "--swap-space", "1GiB", "--no-prefix-cache"}, 2, {"prefix cache"});
  fail({"serve", model, "--preemption-mode", "swap"}, 2, {"--swap-space"});
  fail({"serve", model, "--swap-space", "much"}, 2, {"much", "is not a size"});
  fail({"serve", model, "--port", "0", "--batch-dir", "/proc/x"}, 3, {"/proc/x", "--batch-dir"});
  fail({"bench", "serve", "--url", "ftp://x"}, 2, {"http://"});
  EXPECT_NE(sluice({"bench", "serve", "--url", "http://127.0.0.1:1", "--requests", "1"}).exit_code,
            0);
}

}  // namespace
}  // namespace sluice::testing
