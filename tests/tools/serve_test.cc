// sluice serve and bench serve as a user runs them: start, load, an interrupt in the middle.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
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

// A socket of the file system, bound; listening where it is a stream.
int bound_at(const std::string& path, int type) {
  const int fd = ::socket(AF_UNIX, type, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  if (type == SOCK_STREAM) {
    EXPECT_EQ(::listen(fd, 8), 0);
  }
  return fd;
}

int health(const std::string& socket_path) {
  httplib::Client client(socket_path);
  client.set_address_family(AF_UNIX);
  const auto answer = client.Get("/health");
  return answer ? answer->status : 0;
}

TEST(Serve, AnswersAtASocketOfTheFileSystem) {
  const TemporaryFolder folder;
  const std::string path = folder.path("s");
  Command command({"serve", fixture_model("stories260k"), "-c", "256", "--unix-socket", path,
                   "--unix-socket-mode", "600"});
  ASSERT_TRUE(command.wait_until([&] { return health(path) == 200; }));
  fail({"serve", fixture_model("stories260k"), "--unix-socket", path}, 2,
       {"somebody listens there already", "--unix-socket"});
  EXPECT_EQ(health(path), 200);
  command.send(SIGTERM);
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("at the socket " + path), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(path));
  for (const char* mode : {"9", "0x1", "rw", "66066"})
    fail({"serve", "m", "--unix-socket", path, "--unix-socket-mode", mode}, 2, {"octal"});
  fail({"serve", "m", "--unix-socket", path, "--port", "0"}, 2, {"--unix-socket"});
}

// As a service manager starts a program that it has opened a socket for: descriptor 3, and a
// variable that says for whom.
Command::Options handed_over(int fd, const std::string& notify) {
  Command::Options options;
  options.program = "/bin/sh";
  options.environment = {"SOCKET=" + std::to_string(fd), "NOTIFY_SOCKET=" + notify, "LISTEN_FDS=1"};
  return options;
}
Words started_with(const std::string& pid, const Words& more) {
  Words words{"-c",
              "eval \"exec 3<&$SOCKET\"; LISTEN_PID=" + pid + " exec \"$0\" \"$@\"",
              SLUICE_PROGRAM,
              "serve",
              fixture_model("stories260k"),
              "-c",
              "256",
              "-t",
              "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Serve, TakesASocketFromAServiceManagerAndTellsItHowFarItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.path("s"), notify = folder.path("notify");
  const int listening = bound_at(path, SOCK_STREAM), told = bound_at(notify, SOCK_DGRAM);
  Command command(started_with("$$", {}), handed_over(listening, notify));
  ASSERT_TRUE(command.wait_until([&] { return health(path) == 200; }));
  command.send(SIGTERM);
  EXPECT_EQ(command.wait().exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(path));  // the manager's
  std::string all;
  char state[256];
  for (ssize_t bytes; (bytes = ::recv(told, state, sizeof state, MSG_DONTWAIT)) > 0;)
    all += std::string(state, static_cast<size_t>(bytes)) + ";";
  EXPECT_EQ(all, "STATUS=loading the model;READY=1\nSTATUS=serving;STOPPING=1;");

  const Outcome both =
      Command(started_with("$$", {"--port", "0"}), handed_over(listening, notify)).wait();
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("--port says where to listen"), std::string::npos) << both.err;
  const Outcome none = Command(started_with("$$", {}), handed_over(told, notify)).wait();
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("no stream socket that listens"), std::string::npos) << none.err;
  // What is another process's is not taken.
  const std::string own = folder.path("own");
  Command other(started_with("1", {"--unix-socket", own}), handed_over(listening, notify));
  EXPECT_TRUE(other.wait_until([&] { return health(own) == 200; }));
  ::close(listening);
  ::close(told);
}

}  // namespace
}  // namespace sluice::testing
