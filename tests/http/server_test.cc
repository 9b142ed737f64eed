// The server over real sockets: deadlines, limits, callers that are slow, silent, rude or gone.
#include "src/http/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace sluice::http {
namespace {

using std::chrono::milliseconds;

// A caller that says what it is told to, byte for byte.
class Caller {
 public:
  explicit Caller(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval most{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  }
  ~Caller() { hang_up(); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  bool say(std::string_view bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void say_no_more() { ::shutdown(fd_, SHUT_WR); }
  void hang_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// Until `mark` has come, or the end.
  std::string hear(std::string_view mark) {
    while (heard_.find(mark) == std::string::npos && receive()) continue;
    const size_t at = heard_.find(mark);
    const size_t end = at == std::string::npos ? heard_.size() : at + mark.size();
    std::string out = heard_.substr(0, end);
    heard_.erase(0, end);
    return out;
  }
  std::string hear_all() {
    while (receive()) continue;
    return std::exchange(heard_, {});
  }

 private:
  bool receive() {
    char bytes[4096];
    const ssize_t some = ::recv(fd_, bytes, sizeof bytes, 0);
    if (some > 0) heard_.append(bytes, static_cast<size_t>(some));
    return some > 0;
  }
  int fd_;
  std::string heard_;
};

// Something that threads wait for.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// Pieces of a stream without an end; tells when it is gone.
class Endless final : public LiveAnswer {
 public:
  Endless(Gate& gone, std::atomic<int64_t>& bytes, std::string piece)
      : gone_(gone), bytes_(bytes), piece_(std::move(piece)) {}
  ~Endless() override { gone_.open(); }
  void watch(std::function<void()>) override {}
  Piece next() override {
    if (!std::exchange(has_begun_, true)) return Piece::begin({});
    if (piece_.empty()) return {};
    bytes_ += static_cast<int64_t>(piece_.size());
    return Piece::more(piece_);
  }
  std::string sign_of_life() override { return ": \n\n"; }

 private:
  Gate& gone_;
  std::atomic<int64_t>& bytes_;
  const std::string piece_;
  bool has_begun_ = false;
};

// An answer that has to be waited for; tells when it is gone.
class Awaited final : public LiveAnswer {
 public:
  explicit Awaited(Gate& gone) : gone_(gone) {}
  ~Awaited() override { gone_.open(); }
  void watch(std::function<void()> wake) override {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }
  Piece next() override {
    if (!is_asked_) return {};
    Response response;
    response.set_content("late", "text/plain");
    return Piece::whole(std::move(response));
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_asked_ = true;
    if (wake_) wake_();
  }

 private:
  Gate& gone_;
  std::mutex mutex_;
  std::function<void()> wake_;  // guarded by mutex_
  std::atomic<bool> is_asked_ = false;
};

class Served {
 public:
  explicit Served(ServerOptions options = {}) {
    options.port = 0;
    options.refusal = [](int status, const std::string& message) {
      Response response;
      response.status = status;
      response.set_content(message, "text/plain");
      return response;
    };
    Router router;
    router.add("GET", "/fast", Place::kLoop, [](const Request&, Response& response) {
      response.set_content("fast", "text/plain");
    });
    router.add("GET", "/kept", Place::kLoop, [](const Request&, Response& response) {
      response.status = 304;
      response.set_header("ETag", "\"a\"");
    });
    router.add("POST", "/echo", Place::kWork, [](const Request& request, Response& response) {
      response.set_content(request.body, "text/plain");
    });
    router.add("POST", "/slow", Place::kWork, [this](const Request&, Response& response) {
      ++slow;
      release.wait();
      response.set_content("slow", "text/plain");
    });
    router.add("POST", "/cancel", Place::kReserved, [](const Request&, Response& response) {
      response.set_content("cancelled", "text/plain");
    });
    router.add("GET", "/flood", Place::kWork, [this](const Request&, Response& response) {
      response.live = std::make_shared<Endless>(gone, sent, std::string(64 << 10, 'x'));
    });
    router.add("GET", "/silence", Place::kWork, [this](const Request&, Response& response) {
      response.live = std::make_shared<Endless>(gone, sent, "");
    });
    router.add("GET", "/awaited", Place::kWork, [this](const Request&, Response& response) {
      awaited = std::make_shared<Awaited>(gone);
      response.live = awaited;
      is_awaited.open();
    });
    server_ = std::make_unique<Server>(std::move(router), options);
    port_ = server_->bind();
    listener_ = std::thread([this] { server_->serve(); });
  }
  ~Served() {
    release.open();
    awaited.reset();
    server_->stop();
    listener_.join();
  }
  int port() const { return port_; }
  std::string get(const std::string& path) const {
    Caller caller(port_);
    caller.say("GET " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    return caller.hear_all();
  }
  void stop() { server_->stop(); }

  Gate release, gone, is_awaited;
  std::atomic<int> slow = 0;
  std::atomic<int64_t> sent = 0;
  std::shared_ptr<Awaited> awaited;

 private:
  std::unique_ptr<Server> server_;
  int port_ = 0;
  std::thread listener_;
};

std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + more + "\r\n" + body;
}

bool has_status(const std::string& answer, int status) {
  return answer.starts_with("HTTP/1.1 " + std::to_string(status) + " ");
}

TEST(HttpServerLoop, AnswersOneBehindTheOther) {
  const Served served;
  Caller caller(served.port());
  caller.say(post("/echo", "one") +
             "GET /fast HTTP/1.1\r\nHost: h\r\n\r\nHEAD /fast HTTP/1.1\r\nHost: h\r\n\r\n" +
             post("/echo", "two"));
  EXPECT_TRUE(has_status(caller.hear("one"), 200));
  EXPECT_TRUE(has_status(caller.hear("fast"), 200));
  const std::string head = caller.hear("\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 4"), std::string::npos);
  EXPECT_TRUE(has_status(caller.hear("two"), 200)) << "no body behind HEAD's head";
  caller.say(
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
  EXPECT_TRUE(has_status(caller.hear("abc"), 200));
  caller.say("POST /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(caller.hear("\r\n\r\n").find("Content-Length: 0"), std::string::npos)
      << "a POST without a body";
  caller.say("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(has_status(caller.hear("\r\n\r\n"), 100));
  caller.say("ok");
  EXPECT_TRUE(has_status(caller.hear("ok"), 200));
  // "Not Modified" has no body, and its length would be that of what the caller has.
  caller.say("GET /kept HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(caller.hear("\r\n\r\n"), "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n");
  caller.say("GET /fast HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(caller.hear_all().ends_with("fast"));
}

TEST(HttpServerLoop, RefusesBeforeItReads) {
  ServerOptions options;
  options.most_body_bytes = 1000;
  const Served served(options);
  const auto answer = [&](const std::string& bytes) {
    Caller caller(served.port());
    caller.say(bytes);
    return caller.hear_all();
  };
  EXPECT_TRUE(has_status(
      answer("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n"), 413));
  EXPECT_TRUE(
      has_status(answer("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"), 400));
  EXPECT_TRUE(has_status(
      answer("POST /none HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"),
      404));
  EXPECT_TRUE(has_status(answer(post("/echo", std::string(5000, 'a'))), 413));
  EXPECT_TRUE(
      has_status(answer(post("/echo", "x", "Content-Encoding: br\r\nConnection: close\r\n")), 415));
  EXPECT_TRUE(has_status(answer("GET /" + std::string(100000, 'a')), 431));
  // A small body behind a refused head is read, and the connection goes on.
  Caller caller(served.port());
  caller.say(post("/none", "abc") + post("/echo", "next"));
  EXPECT_TRUE(has_status(caller.hear("POST /none"), 404));
  EXPECT_NE(caller.hear("next").find("200 OK"), std::string::npos);
}

// Hundreds that say nothing, a byte, half a head or half a body: others are answered, and those
// end.
TEST(HttpServerLoop, SlowCallersDelayNobodyAndEnd) {
  ServerOptions options;
  options.head_time = options.body_time = options.idle_time = milliseconds(300);
  const Served served(options);
  std::vector<std::unique_ptr<Caller>> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(std::make_unique<Caller>(served.port()));
    const char* said[] = {"", "G", "GET /fast HTTP/1.1\r\nHost: h\r\nA: b",
                          "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc"};
    slow.back()->say(said[i % 4]);
  }
  EXPECT_TRUE(has_status(served.get("/fast"), 200));
  for (size_t i = 0; i < slow.size(); ++i) {
    const std::string end = slow[i]->hear_all();
    if (i % 4 == 0)
      EXPECT_EQ(end, "");
    else
      EXPECT_TRUE(has_status(end, 408)) << end;
  }
}

// A byte now and then is no head: the time counts from its first to its last.
TEST(HttpServerLoop, ABytePerMomentHoldsNothing) {
  ServerOptions options;
  options.head_time = milliseconds(100);
  const Served served(options);
  Caller caller(served.port());
  std::atomic<bool> is_over = false;
  std::thread dripping([&] {
    while (!is_over && caller.say("a")) std::this_thread::sleep_for(milliseconds(5));
  });
  EXPECT_TRUE(has_status(caller.hear("in time"), 408));
  is_over = true;
  dripping.join();
}

TEST(HttpServerLoop, FullOfConnectionsItStillTellsHowItGoes) {
  ServerOptions options;
  options.most_connections = 4;
  const Served served(options);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 4; ++i) {
    callers.push_back(std::make_unique<Caller>(served.port()));
    callers.back()->say(post("/slow", ""));
  }
  for (int i = 0; i < 1000 && served.slow < 4; ++i) std::this_thread::sleep_for(milliseconds(10));
  ASSERT_EQ(served.slow, 4);
  EXPECT_TRUE(has_status(served.get("/fast"), 200));
  Caller cancelling(served.port());
  cancelling.say(post("/cancel", "", "Connection: close\r\n"));
  EXPECT_TRUE(has_status(cancelling.hear_all(), 200)) << "all four threads of work are busy";
  Caller one_more(served.port());
  one_more.say(post("/echo", "x", "Connection: close\r\n"));
  const std::string refused = one_more.hear_all();
  EXPECT_TRUE(has_status(refused, 503));
  EXPECT_NE(refused.find("Retry-After: 1"), std::string::npos);
}

// Who has waited longest without a request makes way for who comes.
TEST(HttpServerLoop, IdleConnectionsMakeWay) {
  ServerOptions options;
  options.most_connections = 1;
  const Served served(options);
  std::vector<std::unique_ptr<Caller>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Caller>(served.port()));
  EXPECT_TRUE(has_status(served.get("/fast"), 200));
  EXPECT_EQ(idle.front()->hear_all(), "");
}

// Many that say nothing, and more that come: who has asked before keeps its connection, and
// everybody new is answered.
TEST(HttpServerLoop, WhoSaysNothingMakesWayFirst) {
  ServerOptions options;
  options.most_connections = 20;
  const Served served(options);
  Caller kept(served.port());
  kept.say("GET /fast HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(has_status(kept.hear("fast"), 200));
  std::vector<std::unique_ptr<Caller>> silent;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Caller>(served.port()));
    Caller fresh(served.port());
    fresh.say(post("/echo", "x", "Connection: close\r\n"));
    EXPECT_TRUE(has_status(fresh.hear_all(), 200)) << round;
    kept.say("GET /fast HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_TRUE(has_status(kept.hear("fast"), 200)) << round;
  }
}

TEST(HttpServerLoop, BoundsAllBodiesTogether) {
  ServerOptions options;
  options.most_body_bytes = 3 << 20;
  options.most_bytes_together = 4 << 20;
  const Served served(options);
  Caller first(served.port());
  const std::string body(3 << 20, 'a');
  ASSERT_TRUE(first.say(std::string_view(post("/slow", body))));
  for (int i = 0; i < 1000 && served.slow < 1; ++i) std::this_thread::sleep_for(milliseconds(10));
  Caller second(served.port());
  second.say(post("/echo", body));
  EXPECT_TRUE(has_status(second.hear("\r\n\r\n"), 503));
  Caller third(served.port());
  third.say(post("/echo", "small"));
  EXPECT_TRUE(has_status(third.hear("small"), 200));
}

TEST(HttpServerLoop, ACallerThatDoesNotReadHoldsBackTheAnswer) {
  ServerOptions options;
  options.write_time = milliseconds(500);
  Served served(options);
  Caller caller(served.port());
  caller.say("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(served.gone.wait()) << "it is given up";
  EXPECT_LT(served.sent, 64 << 20) << "what the kernel's buffers hold, and little more";
}

TEST(HttpServerLoop, ACallerThatLeavesTakesItsAnswerWithIt) {
  for (const char* path : {"/flood", "/silence"}) {
    Served served;
    Caller caller(served.port());
    caller.say("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n\r\n");
    caller.hear("\r\n\r\n");
    caller.hang_up();
    EXPECT_TRUE(served.gone.wait()) << path;
  }
  Served served;
  Caller caller(served.port());
  caller.say("GET /awaited HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(served.is_awaited.wait());
  served.awaited.reset();
  caller.hang_up();
  EXPECT_TRUE(served.gone.wait());
}

// What the loop saw of those that went must not close who comes in their place.
TEST(HttpServerLoop, CallersThatLeaveTakeNobodyWithThem) {
  const Served served;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 8; ++i) {
      Caller rude(served.port());
      rude.say(i % 2 == 0 ? post("/echo", "gone") : "GET /fast HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    ASSERT_TRUE(served.get("/fast").ends_with("fast")) << round;
  }
}

TEST(HttpServerLoop, ACallerThatSaysNoMoreIsAnswered) {
  Served served;
  Caller caller(served.port());
  caller.say("GET /awaited HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(served.is_awaited.wait());
  caller.say_no_more();
  EXPECT_TRUE(has_status(caller.hear("\r\n\r\n"), 100)) << "whether it is still there";
  served.awaited->release();
  EXPECT_TRUE(caller.hear_all().ends_with("late"));
  Caller fast(served.port());
  fast.say(post("/echo", "both"));
  fast.say_no_more();
  EXPECT_TRUE(fast.hear_all().ends_with("both"));
}

TEST(HttpServerLoop, StopEndsWhatIsIdleAndFinishesWhatRuns) {
  Served served;
  Caller idle(served.port()), running(served.port());
  running.say(post("/slow", ""));
  for (int i = 0; i < 1000 && served.slow < 1; ++i) std::this_thread::sleep_for(milliseconds(10));
  served.stop();
  EXPECT_EQ(idle.hear_all(), "");
  served.release.open();
  EXPECT_TRUE(running.hear_all().ends_with("slow"));
}

}  // namespace
}  // namespace sluice::http
