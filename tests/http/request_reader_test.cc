// Requests out of bytes, whole, in pieces, one behind the other, and what is none.
#include "src/http/request_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::http {
namespace {

using State = RequestReader::State;

// Reads to the end of a request or a failure, however often it stops at a head.
State read_all(RequestReader& reader) {
  State state = reader.read();
  while (state == State::kHeadDone) state = reader.read();
  return state;
}

int status_of(std::string_view bytes, ReaderLimits limits = {}) {
  RequestReader reader(limits);
  reader.add(bytes);
  return read_all(reader) == State::kFailed ? reader.failure().status : 0;
}

TEST(RequestReader, ReadsARequest) {
  RequestReader reader({});
  EXPECT_EQ(reader.read(), State::kIdle);
  reader.add(
      "\r\nPOST /a%20b/c?x=1&y=a+b%2Bc&z HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nContent-Length: "
      "5\r\n\r\nhel");
  EXPECT_EQ(reader.read(), State::kHeadDone);
  EXPECT_EQ(reader.head().method, "POST");
  EXPECT_EQ(reader.head().path, "/a b/c");
  EXPECT_EQ(*reader.head().parameter("y"), "a b+c");
  EXPECT_EQ(*reader.head().parameter("z"), "");
  EXPECT_EQ(reader.head().parameter("w"), nullptr);
  EXPECT_EQ(reader.head().header("x-ONE"), "1");
  EXPECT_EQ(reader.declared_bytes(), 5);
  EXPECT_EQ(reader.read(), State::kBody);
  EXPECT_EQ(reader.body_bytes(), 3);
  reader.add("loGET /next HTTP/1.0\r\n\r\n");
  EXPECT_EQ(reader.read(), State::kDone);
  EXPECT_EQ(reader.take().body, "hello");
  EXPECT_EQ(read_all(reader), State::kDone);
  EXPECT_TRUE(reader.is_http_1_0());
  EXPECT_EQ(reader.take().path, "/next");
  EXPECT_EQ(reader.read(), State::kIdle);
}

// A byte at a time, all kinds of bodies: the same requests.
TEST(RequestReader, AnyCutGivesTheSame) {
  const std::string bytes =
      "POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
      "POST /2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n2;x=y\r\nde\r\n1\r\nf\r\n0\r\nT: "
      "r\r\n\r\n"
      "POST /3 HTTP/1.1\r\nHost: h\r\n\r\n"
      "HEAD /4 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    RequestReader reader({});
    std::vector<std::string> bodies;
    for (size_t at = 0; at < bytes.size();) {
      const size_t some = round == 0 ? 1 : std::min<size_t>(1 + random() % 20, bytes.size() - at);
      reader.add(std::string_view(bytes).substr(at, some));
      at += some;
      while (read_all(reader) == State::kDone) bodies.push_back(reader.take().body);
      ASSERT_NE(reader.state(), State::kFailed) << reader.failure().message;
    }
    EXPECT_EQ(bodies, (std::vector<std::string>{"abc", "def", "", ""}));
    EXPECT_TRUE(reader.is_head_request());
    EXPECT_FALSE(reader.keeps_alive());
  }
}

TEST(RequestReader, RefusesLengthsThatLie) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(status_of(post + "Content-Length: 1000000000000\r\n\r\n"), 413);
  EXPECT_EQ(status_of(post + "Content-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 1x\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status_of(post + "Expect: miracles\r\n\r\n"), 417);
  EXPECT_EQ(status_of("GET / HTTP/9\r\n\r\n"), 400);
  EXPECT_EQ(status_of("\x16\x03\x01 what a TLS client says\r\n\r\n"), 400);
}

// RFC 9112, 3.2.
TEST(RequestReader, WantsOneHost) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 0);
}

TEST(RequestReader, BoundsWhatItKeeps) {
  ReaderLimits limits{.head_bytes = 1000, .body_bytes = 100};
  EXPECT_EQ(status_of("GET /" + std::string(2000, 'a'), limits), 431);
  EXPECT_EQ(
      status_of("GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(2000, 'a') + "\r\n\r\n", limits),
      431);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(chunked + "ff\r\n", limits), 413);
  std::string many = chunked;
  for (int i = 0; i < 101; ++i) many += "1\r\na\r\n";
  EXPECT_EQ(status_of(many, limits), 413);
  EXPECT_EQ(status_of(chunked + "1;" + std::string(2000, 'x'), limits), 431);
  EXPECT_EQ(status_of(chunked + "0\r\nA: " + std::string(2000, 'x'), limits), 431);
  // A promise takes no memory.
  RequestReader reader({.head_bytes = 1000, .body_bytes = int64_t{1} << 40});
  reader.add("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\nabc");
  EXPECT_EQ(read_all(reader), State::kBody);
  EXPECT_EQ(reader.body_bytes(), 3);
}

// Single bytes of requests changed: a request, a failure, or more to come; never anything else.
TEST(RequestReader, SurvivesNonsense) {
  const std::string seed =
      "POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = seed;
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const size_t at = random() % bytes.size();
      if (random() % 2 == 0)
        bytes[at] = static_cast<char>(random());
      else
        bytes.erase(at, random() % 10);
      if (bytes.empty()) bytes = "G";
    }
    RequestReader reader({.head_bytes = 200, .body_bytes = 50});
    reader.add(bytes);
    while (read_all(reader) == State::kDone) EXPECT_LE(reader.take().body.size(), 50u);
  }
}

}  // namespace
}  // namespace sluice::http
