#pragma once
// What an HTTP server and its routes say to each other: a request whole; an answer whole, or as it
// is made. Values; no sockets, no third party.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::http {

using Clock = std::chrono::steady_clock;
using Fields = std::vector<std::pair<std::string, std::string>>;

/// A request, read whole.
struct Request {
  std::string method;  ///< "GET"; routes are told HEAD as GET
  std::string path;    ///< decoded, without the query
  Fields query;        ///< decoded
  Fields headers;
  std::string body;
  std::vector<std::string> parts;  ///< what the {} of the route's path matched
  std::string
      peer;  ///< the address that it came from, without the port; "unix:UID" of a process here

  /// The first header of that name in any case; empty when there is none.
  std::string_view header(std::string_view name) const;
  /// The first parameter of that name in the query; null when there is none.
  const std::string* parameter(std::string_view name) const;
};

class LiveAnswer;

/// What a route answers with.
struct Response {
  int status = 200;
  Fields headers;
  std::string body;
  std::shared_ptr<LiveAnswer> live;  ///< answers instead of all above
  /// Of the head of a live answer: bytes that follow; none: they go out chunked.
  std::optional<int64_t> length;

  void set_header(std::string name, std::string value) {
    headers.emplace_back(std::move(name), std::move(value));
  }
  void set_content(std::string content, std::string type) {
    body = std::move(content);
    set_header("Content-Type", std::move(type));
  }
};

/// What there is of a live answer just now.
struct Piece {
  enum class Kind : uint8_t {
    kNothingYet,
    kWhole,  ///< `response` is all of it
    kBegin,  ///< the head of `response`; pieces follow
    kMore,   ///< `bytes` of the body
    kEnd,    ///< `bytes`, and nothing follows
    kBroken  ///< it can't be finished: the connection ends, so that nobody takes it for whole
  };
  Kind kind = Kind::kNothingYet;
  Response response;
  std::string bytes;
  Clock::time_point ask_again = Clock::time_point::max();  ///< kNothingYet: at the latest then

  static Piece nothing_until(Clock::time_point then) { return {Kind::kNothingYet, {}, {}, then}; }
  static Piece whole(Response response) { return {Kind::kWhole, std::move(response), {}, {}}; }
  static Piece begin(Response head) { return {Kind::kBegin, std::move(head), {}, {}}; }
  static Piece more(std::string bytes) { return {Kind::kMore, {}, std::move(bytes), {}}; }
  static Piece end(std::string bytes = {}) { return {Kind::kEnd, {}, std::move(bytes), {}}; }
  static Piece broken() { return {Kind::kBroken, {}, {}, {}}; }
};

/// An answer that comes as it is made. The server asks for more when what there was is written, so
/// a slow caller slows it down; when the caller leaves, it is destroyed before its end. Asked and
/// destroyed in one thread of the server's.
class LiveAnswer {
 public:
  virtual ~LiveAnswer() = default;
  /// `wake` says that next() may have something new: from any thread, cheap. Called once, before
  /// next(). Must not be called any more once the answer is destroyed.
  virtual void watch(std::function<void()> wake) = 0;
  virtual Piece next() = 0;
  /// Bytes that mean nothing to the caller: written to see whether it is still there. May be empty.
  virtual std::string sign_of_life() { return {}; }
};

/// "Not Found"; empty for what has none here.
std::string_view reason_phrase(int status) noexcept;
/// The head of an answer as it goes out, up to and with the empty line.
std::string head_text(const Response& response, std::string_view framing, bool closes);
/// Whether two texts are the same but for the case of ASCII letters.
bool is_same_name(std::string_view a, std::string_view b) noexcept;

}  // namespace sluice::http
